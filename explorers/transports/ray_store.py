"""Weights through Ray's object store, for engines on nodes that do not see the published folder.

The files are put into the store once, as byte arrays (no pickle, any dtype). Every engine of a node reads
them without a copy. An actor on the publisher's node keeps the newest versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from explorers.transports.arrival import (
    Arrived,
    Source,
    arrived_files,
    checked_manifest,
    is_needed,
    tensors_in_bytes,
)
from rft_data.core.errors import EngineError, StalledError
from rft_data.core.files import MANIFEST_FILE, manifest_bytes, parse_manifest
from rft_data.core.lookup import need
from rft_data.core.rows import WeightRef
from rft_data.weights.probe import PROBE_FILE

if TYPE_CHECKING:
    import torch
    from ray import ObjectRef
    from ray.actor import ActorHandle

_KEPT = 2
_WHY = "the ray weight transport"


class Shelf:
    """The actor: holds the object references of the files of each version."""

    def __init__(self) -> None:
        """Starts empty."""
        self._versions: dict[int, dict[str, ObjectRef]] = {}

    def put(self, version: int, directory: str) -> None:
        """Put a published folder's files into the object store; only the newest _KEPT versions stay."""
        ray = need("ray", "ray", _WHY)
        manifest = parse_manifest(manifest_bytes(Path(directory)), directory)
        names = [MANIFEST_FILE, *(name for name in manifest["files"] if is_needed(name))]
        self._versions[version] = {
            name: ray.put(np.fromfile(Path(directory) / name, dtype=np.uint8)) for name in names
        }
        for old in sorted(self._versions)[:-_KEPT]:
            del self._versions[old]

    def files(self, version: int) -> dict[str, ObjectRef] | None:
        """Name and object reference of a version's files; None when it is not here."""
        return self._versions.get(version)


class RaySender:
    """The publisher's side: one named actor on its node."""

    def __init__(self, name: str) -> None:
        """`name` of the actor, unique in the Ray namespace; Ray must be initialised."""
        ray = need("ray", "ray", _WHY)
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._shelf: ActorHandle = (
            ray.remote(Shelf).options(name=name, num_cpus=0, scheduling_strategy=this_node).remote()
        )

    def offer(self, ref: WeightRef, deadline_s: float = 600.0) -> None:
        """Put a published version where every engine can fetch it; call it before they load.

        Raises: StalledError past the deadline.
        """
        import ray

        try:
            ray.get(self._shelf.put.remote(ref.version, ref.path), timeout=deadline_s)
        except ray.exceptions.GetTimeoutError as err:
            raise StalledError(
                f"putting version {ref.version} ({ref.path}) into Ray's object store took more than "
                f"{deadline_s:g} s; check `ray status` and the size of the store."
            ) from err

    def close(self) -> None:
        """End the actor; files that engines are reading stay until they are done."""
        import ray

        ray.kill(self._shelf)


class RayStore:
    """The engine's side."""

    engine_options: Mapping[str, object] = {}

    def __init__(self, actor: str, deadline_s: float = 600.0) -> None:
        """`actor`: the sender's name; `deadline_s`: longest wait for a version."""
        self._actor = actor
        self._deadline_s = deadline_s

    def fetch(self, ref: WeightRef) -> Arrived:
        """Fetch every file to this node and check its digest.

        Raises: IntegrityError for bytes that do not match the manifest, EngineError for a version that was
        not
            offered, StalledError past the deadline; MissingFileError when it is an adapter whose base cannot
            be read on this node.
        """
        source: Source = {
            "use": "ray",
            "actor": self._actor,
            "version": ref.version,
            "deadline_s": self._deadline_s,
        }
        files = _files(source, MANIFEST_FILE)
        manifest = checked_manifest(files[MANIFEST_FILE].tobytes(), ref, f"'{self._actor}': {MANIFEST_FILE}")
        files = _files(source, None)
        return arrived_files(files, manifest, ref, source)

    def close(self) -> None:
        """Nothing is held."""


def read(source: Source) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a version's files, in an engine's worker."""
    files = tensor_files(source)
    for name in sorted(files):
        yield from tensors_in_bytes(files[name])


def tensor_files(source: Source) -> dict[str, npt.NDArray[np.uint8]]:
    """A version's files with tensors, as byte arrays in the node's object store."""
    files = _files(source, None)
    return {name: files[name] for name in files.keys() - {PROBE_FILE, MANIFEST_FILE}}


def _files(source: Source, only: str | None) -> dict[str, npt.NDArray[np.uint8]]:
    """A version's files as byte arrays, all or one, straight from the node's object store."""
    ray = need("ray", "ray", _WHY)
    actor, version, deadline_s = source["actor"], source["version"], source["deadline_s"]
    try:
        shelf = ray.get_actor(actor)
        references = ray.get(shelf.files.remote(version), timeout=deadline_s)
        if references is None:
            raise EngineError(
                f"Ray actor '{actor}' does not hold version {version}; offer it before the load."
            )
        names = [only] if only else list(references)
        arrays = ray.get([references[name] for name in names], timeout=deadline_s)
    except ValueError as err:
        raise EngineError(f"there is no Ray actor '{actor}' that holds weights; start its sender.") from err
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError) as err:
        raise StalledError(
            f"version {version} did not come from Ray actor '{actor}' within {deadline_s:g} s ({err})."
        ) from err
    return dict(zip(names, arrays, strict=True))
