"""Versions that are an adapter (LoRA, arXiv:2106.09685): their base in the manifest, and merging with it.

Trainers and engines both merge with this code. It writes nothing and depends on no model class.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rft_data.core.errors import IntegrityError, MissingFileError, RecipeError
from rft_data.core.files import (
    MANIFEST_FILE,
    file_digest,
    manifest_bytes,
    parse_manifest,
    tensors_in,
    weight_files,
)

if TYPE_CHECKING:
    import torch

ADAPTER = "adapter"
"""The entry of a manifest that names the base of an adapter; whole weights have no such entry."""
ADAPTER_FILE = "adapter_model.safetensors"
"""PEFT's name."""
_LAYER = "base_model.model."
"""PEFT's prefix of a layer's name."""


def adapter_facts(base: Path, scales: Mapping[str, float], version: Path) -> dict[str, object]:
    """The entry of a manifest about an adapter.

    `base`: its folder, relative to the folder `version` where both are in one run's folder, so that a run
    can be moved. `files`: sizes and digests of the base's safetensors files. `scales`: the factor of each
    adapted tensor's matrix product. `tensors`: type and shape of every tensor after merging.

    Raises: RecipeError when the base's files have no tensor of an adapted layer's name.
    """
    tensors = tensors_in(base)
    if unknown := sorted(scales.keys() - tensors.keys()):
        raise RecipeError(
            f"lora: '{unknown[0]}' is not a tensor of the safetensors files in {base}: this model's layers "
            "have other names in memory, and adapters of them cannot be published. Adapt other layers."
        )
    files = {
        path.name: {"bytes": path.stat().st_size, "blake2b": _digest(path)} for path in weight_files(base)
    }
    merged_ones = {name: ("F32", tensors[name][1]) for name in scales}
    inside = base.is_relative_to(version.absolute().parent.parent)
    where = os.path.relpath(base, version.absolute()) if inside else str(base)
    return {"base": where, "files": files, "scales": dict(scales), "tensors": tensors | merged_ones}


def adapter_in(folder: Path) -> dict[str, Any] | None:
    """The adapter entry of a folder's manifest; None for whole weights, and without a manifest.

    Raises: IntegrityError when the manifest is damaged.
    """
    path = folder / MANIFEST_FILE
    return manifest_adapter(parse_manifest(manifest_bytes(folder), path), folder) if path.is_file() else None


def manifest_adapter(manifest: Mapping[str, Any], version: Path) -> dict[str, Any] | None:
    """The adapter entry of a manifest, with the base's path made absolute; None for whole weights.

    Args: version: the folder that was published, also if the manifest was read from a copy.
    """
    adapter = manifest.get(ADAPTER)
    if adapter is None:
        return None
    return {**adapter, "base": os.path.normpath(version.absolute() / adapter["base"])}


def check_base(adapter: Mapping[str, Any]) -> None:
    """Check that the base is the one the adapter was trained on; unchanged files are read once per process.

    Raises: MissingFileError, IntegrityError naming the file that cannot be read or differs.
    """
    for name, facts in adapter["files"].items():
        file = Path(adapter["base"]) / name
        if not file.is_file():
            raise MissingFileError(
                f"{file}, of the model that published adapters are merged into, cannot be read here; every "
                "machine with an explorer must see that folder, at the same path."
            )
        if file.stat().st_size != facts["bytes"] or _digest(file) != facts["blake2b"]:
            raise IntegrityError(
                f"{file} is not the file that the published adapter was trained on: it was damaged or "
                "changed. Put it back."
            )


def merged(
    base: Iterable[tuple[str, torch.Tensor]],
    adapter: Mapping[str, torch.Tensor],
    scales: Mapping[str, float],
) -> Iterator[tuple[str, torch.Tensor]]:
    """The base's tensors in their order; each W with an adapter becomes W + scale * B A in float32.

    float32, because in bfloat16 an update smaller than 1/256 of a weight would be lost.
    Args: adapter: tensors by PEFT's names. scales: by the name of W.
    """
    for name, tensor in base:
        if name not in scales:
            yield name, tensor
            continue
        layer = _LAYER + name.removesuffix(".weight")
        down, up = adapter[f"{layer}.lora_A.weight"].float(), adapter[f"{layer}.lora_B.weight"].float()
        yield name, tensor.float() + scales[name] * (up @ down)


def adapted_tensor(layer: str) -> str:
    """The name, in the base, of the weight of a layer that PEFT has wrapped."""
    return layer.removeprefix(_LAYER) + ".weight"


def _digest(path: Path) -> str:
    facts = path.stat()
    return _cached_digest(path, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


@lru_cache(maxsize=1024)
def _cached_digest(path: Path, *facts: int) -> str:
    """`facts` change with the file. Cached, because each version checks its base, at 1 s per GB."""
    return file_digest(path)
