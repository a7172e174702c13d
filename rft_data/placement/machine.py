"""What this machine has, against what roles ask for: warnings before a run, never a refusal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rft_data.core.protocols import RoleSpec

_ROLE_BYTES = 1 << 30
"""About what a role with torch or vLLM and a small model takes (measured: 0.9 GB)."""


def warnings_for(specs: Sequence[RoleSpec]) -> list[str]:
    """What there may be too little of."""
    warnings = []
    needed, there = sum(spec.cpus for spec in specs), _cpus()
    if needed > there:
        warnings.append(
            f"the roles ask for {needed:g} CPUs ({_list(specs)}); this machine gives {there}: "
            "they take turns, and nothing runs faster than in turns."
        )
    free = _free_bytes()
    if free is not None and free < _ROLE_BYTES * len(specs):
        warnings.append(
            f"{free / 2**30:.1f} GiB of memory are free for {len(specs)} roles; each takes about "
            f"{_ROLE_BYTES / 2**30:.0f} GiB with a small model, and more with a larger one."
        )
    return warnings


def _list(specs: Sequence[RoleSpec]) -> str:
    return ", ".join(f"{spec.name}: {spec.cpus:g}" for spec in specs)


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _free_bytes() -> int | None:
    """Memory that can be had without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kilobytes[0] * 1024 if kilobytes else None
