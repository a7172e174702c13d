"""Reads the tensors of a version in an engine's worker, by the transport's `source`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from explorers.transports import directory, held, ray_store
from explorers.transports.arrival import Source, whole_tensors

if TYPE_CHECKING:
    import torch

Tensors = Iterator[tuple[str, "torch.Tensor"]]

READERS: Mapping[str, Callable[[Source], Tensors]] = {
    "directory": directory.read,
    "ray": ray_store.read,
    "memory": held.read,
}


def open_source(source: Source) -> Tensors:
    """Name and tensor of a whole version, one at a time; an adapter is merged into its base."""
    return whole_tensors(READERS[source["use"]](source), source)
