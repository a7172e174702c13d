"""Files of a version in memory of this process, which other processes of its machine and user can open.

The workers of an engine over several devices are such processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from explorers.transports import ray_store
from explorers.transports.arrival import Arrived, Source, Transport, tensors_in_bytes
from rft_data.core.rows import WeightRef

if TYPE_CHECKING:
    import torch


class HeldFile:
    """Bytes in memory that other processes of this user can open by `path`; they go with this object."""

    def __init__(self, name: str, size: int) -> None:
        """`size` bytes, all 0."""
        descriptor = os.memfd_create(name)
        os.truncate(descriptor, size)
        self._file = os.fdopen(descriptor)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.data: npt.NDArray[np.uint8] = np.memmap(self.path, np.uint8, "r+", shape=(size,))

    def close(self) -> None:
        """Free the memory once nothing reads it."""
        self._file.close()


def held_source(files: Mapping[str, HeldFile]) -> Source:
    """Source from which a worker reads these files."""
    return {"use": "memory", "files": {name: one.path for name, one in files.items()}}


def forget(files: Mapping[str, HeldFile], error: BaseException | None) -> None:
    """Free the memory of files when they are loaded, or not wanted any more."""
    for file in files.values():
        file.close()


def read(source: Source) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a version's files, in an engine's worker."""
    for name in sorted(source["files"]):
        yield from tensors_in_bytes(np.memmap(source["files"][name], np.uint8, "r"))


class ForWorkers:
    """Brings what another transport brings, to an engine whose workers are processes of their own.

    They are in no Ray cluster, so what came through Ray's object store is copied once to where they read it.
    """

    def __init__(self, way: Transport) -> None:
        """`way`: of the engine's own process."""
        self._way = way
        self.engine_options = way.engine_options
        self.close = way.close

    def fetch(self, ref: WeightRef) -> Arrived:
        """Fetch and check one version. Raises: what the other transport raises."""
        arrived = self._way.fetch(ref)
        if arrived.source["use"] != "ray":
            return arrived
        files: dict[str, HeldFile] = {}
        for name, data in ray_store.tensor_files(arrived.source).items():
            files[name] = HeldFile(name, len(data))
            files[name].data[:] = data
        source: Source = {**arrived.source, **held_source(files)}
        return replace(arrived, source=source, done=partial(forget, files))
