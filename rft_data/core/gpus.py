"""The GPUs that a process of this machine may use, found without CUDA, which would use memory on one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

_GPU = re.compile(r"cuda(?::(\d+))?")


def gpu_number(device: str) -> int | None:
    """The number, among those that its process sees, of the GPU with this name of torch's; None for a CPU."""
    found = _GPU.fullmatch(device)
    return None if found is None else int(found[1] or 0)


def visible_devices() -> list[str]:
    """The GPUs that this process may use: those named in CUDA_VISIBLE_DEVICES, or else all of the machine."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device.strip() for device in named.split(",") if device.strip() not in ("", "-1")]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=index", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return []
    return found.stdout.split() if found.returncode == 0 else []
