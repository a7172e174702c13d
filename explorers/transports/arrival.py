"""The result of a transport (`Arrived`), and functions that read tensors from files and bytes.

It depends on no engine and no transport.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Required, TypedDict

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from rft_data.core.errors import IntegrityError
from rft_data.core.files import Tensors, parse_manifest, safetensors_header, weight_files
from rft_data.core.rows import WeightRef
from rft_data.weights.adapter import ADAPTER, check_base, manifest_adapter, merged
from rft_data.weights.probe import PROBE_FILE, Probe

if TYPE_CHECKING:
    import torch


class Source(TypedDict, total=False):
    """Source of tensors for an engine's worker: JSON values, because the worker may be another process."""

    use: Required[str]
    """The transport that it belongs to; each transport uses its own fields of those below."""
    n_tensors: int
    """How many there are; in any source that is applied."""
    base: str
    """The folder of an adapter's base; absent for whole weights."""
    scales: Mapping[str, float]
    """How strongly each layer of the adapter counts."""
    path: str
    """A folder."""
    files: Mapping[str, str]
    """Paths of files in memory, by the file's name."""
    actor: str
    version: int
    deadline_s: float
    generation: int
    """Number of the sender's group."""
    init: Mapping[str, object]
    """How that group is joined."""
    update: object
    """vLLM's description of the tensors, as `transfer_calls.encode` gives it."""


TORCH_DTYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
"""torch's names for the dtypes of safetensors."""


@dataclass(frozen=True, slots=True)
class Arrived(AbstractContextManager["Arrived"]):
    """Checked weights, ready to be applied. Leaving the `with` block releases them."""

    tensors: Tensors
    """Names, dtypes and shapes in the manifest."""
    probe: Probe
    source: Source
    done: Callable[[BaseException | None], None] = lambda error: None
    """Called once at the end, with the error of the `with` block or None."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Call `done`."""
        self.done(error)


class Transport(Protocol):
    """Fetches published weights for an engine; one object per engine, in the engine's process."""

    engine_options: Mapping[str, object]
    """Options the engine has to be started with."""

    def fetch(self, ref: WeightRef) -> Arrived:
        """Fetch and check one version. It may take long; the engine generates meanwhile.

        Raises: IntegrityError when they are incomplete, damaged or of another version.
        """
        ...

    def close(self) -> None:
        """Release everything; idempotent."""
        ...


def checked_manifest(data: bytes, ref: WeightRef, where: object) -> dict[str, Any]:
    """A weight directory's manifest, which must be of `ref`.

    Raises: IntegrityError when it is damaged or of other weights.
    """
    manifest = parse_manifest(data, where)
    wanted = {"run_id": ref.run_id, "version": ref.version, "step": ref.step}
    found = {key: manifest.get(key) for key in wanted}
    if found != wanted or not isinstance(manifest.get("tensors"), dict):
        raise IntegrityError(
            f"{where} is of {found} and names {len(manifest.get('tensors') or ())} tensors; wanted the "
            f"weights of {wanted}: the version served before is still served; publish again."
        )
    return manifest


def file_tensors(manifest: Mapping[str, Any]) -> Tensors:
    """The tensors that a manifest's files hold."""
    return {name: (dtype, tuple(shape)) for name, (dtype, shape) in manifest["tensors"].items()}


def engine_tensors(manifest: Mapping[str, Any]) -> Tensors:
    """The tensors that an engine loads: those of the files, or of the base with the adapter merged."""
    return file_tensors(manifest.get(ADAPTER, manifest))


def arrived_files(
    files: Mapping[str, npt.NDArray[np.uint8]],
    manifest: Mapping[str, Any],
    ref: WeightRef,
    source: Source,
    done: Callable[[BaseException | None], None] = lambda error: None,
) -> Arrived:
    """The files of a version that are in memory, checked.

    Args: files: bytes of those that `is_needed` says, by name. source: where an engine's worker reads them.
    Raises: IntegrityError for bytes that do not match the manifest; MissingFileError when it is an adapter
        whose base cannot be read on this node.
    """
    tensors: Tensors = {}
    for name in filter(is_needed, manifest["files"]):
        data = files.get(name)
        if data is None or _digest(data) != manifest["files"][name]["blake2b"]:
            raise IntegrityError(
                f"'{name}' of version {ref.version} did not arrive by '{source['use']}', or does not match "
                "its manifest; the version served before is still served: publish again."
            )
        if name != PROBE_FILE:
            header = data[: 8 + int.from_bytes(bytes(data[:8]), "little")]
            tensors.update(safetensors_header(BytesIO(header.tobytes()).read, len(data)))
    if tensors != file_tensors(manifest):
        raise IntegrityError(f"the files of version {ref.version} do not hold the manifest's tensors.")
    probe = probe_in_bytes(bytes(files[PROBE_FILE]))
    return Arrived(engine_tensors(manifest), probe, on_base(manifest, Path(ref.path), source), done)


def is_needed(name: str) -> bool:
    """Whether an engine needs a file: tensors, of a model or an adapter, and the probe."""
    return name == PROBE_FILE or (name.endswith(".safetensors") and "/" not in name)


def _digest(data: npt.NDArray[np.uint8]) -> str:
    return hashlib.blake2b(data.data, digest_size=16).hexdigest()


def on_base(manifest: Mapping[str, Any], version: Path, source: Source) -> Source:
    """`source` with the base of an adapter added, after a check of the base; without an adapter, `source`.

    Args: version: the folder that was published.
    Raises: MissingFileError, IntegrityError when the base cannot be read or is another model.
    """
    adapter = manifest_adapter(manifest, version)
    if adapter is None:
        return source
    check_base(adapter)
    return {**source, "base": adapter["base"], "scales": adapter["scales"]}


def whole_tensors(
    tensors: Iterator[tuple[str, torch.Tensor]], source: Source
) -> Iterator[tuple[str, torch.Tensor]]:
    """`tensors` of a version's files; those of an adapter are merged into its base."""
    if "base" not in source:
        return tensors
    return merged(iterate_tensors(Path(source["base"])), dict(tensors), source["scales"])


def iterate_tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of everything in a folder's safetensors files, in order of name, read one at a time.

    Raises: IntegrityError if a file is not safetensors or is cut short.
    """
    where: dict[str, safe_open] = {}
    for path in weight_files(directory):
        try:
            file = safe_open(path, framework="pt")
            where |= dict.fromkeys(file.keys(), file)
        except SafetensorError as err:
            raise IntegrityError(f"{path} is not a whole safetensors file ({err}); publish again.") from err
    for name in sorted(where):
        yield name, where[name].get_tensor(name)


def tensors_in_bytes(data: npt.NDArray[np.uint8]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a safetensors file held in memory, copied one at a time; any dtype torch has."""
    import torch

    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:start].tobytes())
    for name in sorted(header.keys() - {"__metadata__"}):
        first, end = header[name]["data_offsets"]
        tensor = torch.empty(header[name]["shape"], dtype=getattr(torch, TORCH_DTYPES[header[name]["dtype"]]))
        if end > first:
            content = torch.from_numpy(np.array(data[start + first : start + end]))
            tensor.reshape(-1).view(torch.uint8).copy_(content)
        yield name, tensor


def probe_in_bytes(data: bytes) -> Probe:
    """The probe of a weight directory, from its file's bytes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / PROBE_FILE
        path.parent.mkdir()
        path.write_bytes(data)
        return Probe.load(Path(folder))
