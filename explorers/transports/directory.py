"""The weight directory itself, read by every engine from where it was published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from explorers.transports.arrival import (
    Arrived,
    Source,
    checked_manifest,
    engine_tensors,
    file_tensors,
    iterate_tensors,
    on_base,
)
from rft_data.core.errors import IntegrityError
from rft_data.core.files import MANIFEST_FILE, manifest_bytes, read_manifest, tensors_in, weight_files
from rft_data.core.rows import WeightRef
from rft_data.weights.probe import Probe

if TYPE_CHECKING:
    import torch


class Directory:
    """Reads the published folder: a local disk, or a file system every node sees."""

    engine_options: Mapping[str, object] = {}

    def fetch(self, ref: WeightRef) -> Arrived:
        """Check every file of the folder against its digest (about 1 s per GB and engine).

        Raises: IntegrityError when it is damaged, incomplete, or of another version; MissingFileError when
            it is an adapter whose base cannot be read.
        """
        directory = Path(ref.path)
        read_manifest(directory)
        return opened(directory, ref)

    def close(self) -> None:
        """Nothing is held."""


def opened(directory: Path, ref: WeightRef) -> Arrived:
    """Open a folder of checked files: compare its tensors with the manifest, check an adapter's base."""
    manifest = checked_manifest(manifest_bytes(directory), ref, directory / MANIFEST_FILE)
    differ = {name for name, _ in file_tensors(manifest).items() ^ tensors_in(directory).items()}
    differ |= {path.name for path in weight_files(directory)} - manifest["files"].keys()
    if differ:
        raise IntegrityError(
            f"the safetensors files in {directory} do not hold the tensors its manifest lists (for example "
            f"'{min(differ)}'); the version served before is still served: publish again."
        )
    source = on_base(manifest, Path(ref.path), {"use": "directory", "path": str(directory)})
    return Arrived(engine_tensors(manifest), Probe.load(directory), source)


def read(source: Source) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a folder's files, in an engine's worker."""
    return iterate_tensors(Path(source["path"]))
