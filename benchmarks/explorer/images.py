"""`python -m benchmarks.explorer.images JSON FILE`: memory of rollouts of one large image, in a process.

The process has the explorer's role with vLLM inside it and a vision-language model of random weights. It
plays as many rollouts of a small image before, so that what grows with their number is there already.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.child import Tasks, answer
from benchmarks.explorer.throughput import GROUP, explored, plan, published
from explorers.role import explorer_role
from rft_data.buffer import Buffer
from rft_data.core.images import image_part
from rft_data.core.rows import Task, WeightRef

MODEL_LEN = 64
SMALL = 40
"""Pixels of a side of the image that comes before."""


def prepare(folder: str, side: int) -> dict[str, Any]:
    """A published model that looks at images, and a buffer with a small one and one of `side` pixels."""
    from tests.tiny_vision import build_tiny_vision_model, png

    published(build_tiny_vision_model(Path(folder) / "model"))
    with Buffer(f"{folder}/buffer") as buffer:
        images = [png(1, SMALL), png(2, side)]
        names = [buffer.add_payload(data, "image/png") for data in images]
    return {"names": names, "bytes": len(images[1])}


def rollouts(folder: str, names: list[str], count: int) -> dict[str, Any]:
    """Bytes by which this process grows over `count` rollouts of the second image, now and at most."""
    model = f"{folder}/model"
    of_vllm = {"model_impl": "transformers", "max_num_seqs": 256}
    given = plan(model, MODEL_LEN, of_vllm, {"max_tokens": 4}, {"min_members": 1})
    with Buffer(f"{folder}/buffer") as buffer:
        role = explorer_role(buffer, plan=given)
        try:
            asyncio.run(role.load_weights(WeightRef("bench", 0, 0, model)))
            asyncio.run(explored(role, _tasks(names[0], count), "small"))
            before = _status("VmRSS")
            live, arrow = _live(), pa.total_allocated_bytes()
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            played = asyncio.run(explored(role, _tasks(names[1], count), "large"))
            gc.collect()
            found = {
                "grown": _status("VmRSS") - before,
                "peak": _status("VmHWM") - before,
                "live": _live() - live,
                "arrow": pa.total_allocated_bytes() - arrow,
            }
            ctypes.CDLL(None).malloc_trim(0)
            found["grown_trimmed"] = _status("VmRSS") - before
        finally:
            role.close()
    return {**found, "rows": sum(group.rows for group in played)}


def _tasks(name: str, count: int) -> list[Task]:
    content = [image_part(name), {"type": "text", "text": "1 + 1 ="}]
    return [Task("seen", ({"role": "user", "content": content},), str(i)) for i in range(count // GROUP)]


class _Heap(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"),
            *("fordblks", "keepcost"),
        )
    ]


def _live() -> int:
    """Bytes that glibc's allocator has handed out and not got back, in all its arenas' mapped blocks."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Heap
    heap = library.mallinfo2()
    return int(heap.uordblks + heap.hblkhd)


def _status(key: str) -> int:
    """A figure of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1]) << 10


TASKS: Tasks = {"prepare": prepare, "rollouts": rollouts}

if __name__ == "__main__":
    answer(TASKS)
