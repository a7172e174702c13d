"""Compares the CPUs and memory of this machine with what roles ask for: warnings, never an error."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rft_data.core.roles import RoleSpec

ROLE_BYTES = 1 << 30
"""About the memory of a role with torch or vLLM and a small model (measured: 0.9 GB)."""


def warnings_for(specs: Sequence[RoleSpec]) -> list[str]:
    """One text for each resource that may not be enough for these roles."""
    warnings = []
    needed, available = sum(spec.cpus for spec in specs), cpu_count()
    if needed > available:
        warnings.append(
            f"the roles ask for {needed:g} CPUs ({_list(specs)}); this machine has {available}: "
            "the roles share them, and are no faster than one after the other."
        )
    free = free_bytes()
    if free is not None and free < ROLE_BYTES * len(specs):
        warnings.append(
            f"{free / 2**30:.1f} GiB of memory are free for {len(specs)} roles; each needs about "
            f"{ROLE_BYTES / 2**30:.0f} GiB with a small model, and more with a larger one."
        )
    return warnings


def _list(specs: Sequence[RoleSpec]) -> str:
    return ", ".join(f"{spec.name}: {spec.cpus:g}" for spec in specs)


def cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_bytes() -> int:
    """Memory of this machine, used or free."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_bytes() -> int | None:
    """Memory available without swapping; None if the system does not tell it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kilobytes[0] * 1024 if kilobytes else None
