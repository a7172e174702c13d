"""GPUs at the two ends of a broadcast between GPUs: NCCL takes no GPU twice in one group."""

from __future__ import annotations

from collections.abc import Container, Sequence


def seen_gpus() -> list[str]:
    """The GPUs that this process sees, by names that are the same in every process."""
    import torch

    cuda = torch.cuda
    return [str(cuda.get_device_properties(number).uuid) for number in range(cuda.device_count())]


def free_gpu(seen: Sequence[str], taken: Container[str]) -> str:
    """torch's name of the last GPU of these that is not taken; empty if there is none."""
    free = [number for number, name in enumerate(seen) if name not in taken]
    return f"cuda:{free[-1]}" if free else ""
