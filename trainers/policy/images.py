"""Images of a lease: each is loaded and made into tensors once, whatever the number of rows that show it.

The tensors come from the model's own image processor. Micro-batches share them; a row has only their numbers.
"""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import torch
from transformers import PreTrainedModel

from rft_data.core.errors import RecipeError, RowError
from rft_data.core.images import PROCESSOR
from rft_data.core.lookup import need
from rft_data.core.model_folder import placeholder_id, processor_hash, takes_images
from rft_data.core.protocols import BufferClient, LeasedBatch

SHOWN, TENSORS = "images_shown", "image."
"""Of a batch: (R, K) the number of each row's k-th image, -1 for none; and the prefix of images' tensors,
`image.NUMBER.NAME`, which belong to the whole step."""
_INPUTS = (
    *("pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask"),
    *("spatial_shapes", "image_position_ids"),
)
"""Names of the tensors of images in models and TRL's loss; these are joined along their first dimension."""
_KINDS = ("mm_token_type_ids", "token_type_ids")
"""Names of (B, T) tensors in models that are 1 where a token stands for a piece of an image."""


class Images:
    """Makes tensors of the images that rows show."""

    def __init__(self, model_path: Path) -> None:
        processors = need("transformers", "train", "the processor of a model that looks at images")
        self._processor = processors.AutoProcessor.from_pretrained(model_path).image_processor
        self._hash = processor_hash(model_path)
        found = placeholder_id(model_path)
        self._placeholder = -1 if found is None else found
        self._model_path = model_path

    def loaded(self, batch: LeasedBatch, buffer: BufferClient) -> LeasedBatch:
        """The batch with a column `payloads` and the bytes of the images.

        Raises: RowError for a row whose images were made into tensors in another way.
        """
        rows = buffer.take(batch.table.column("seq").to_pylist()).select(["seq", "payloads", "metadata"])
        for row in rows.filter(pc.list_value_length(rows["payloads"]).to_numpy() > 0).to_pylist():
            made_by = (json.loads(row["metadata"] or "{}") or {}).get(PROCESSOR)
            if made_by != self._hash:
                raise RowError(
                    f"experience row {row['seq']} shows images that processor '{made_by}' prepared, and "
                    f"'{self._model_path}' has '{self._hash}'; train the model that explored, with its files."
                )
        names = sorted(set(pc.list_flatten(rows["payloads"]).to_pylist()))
        table = batch.table.append_column("payloads", rows["payloads"])
        return replace(batch, table=table, images={name: buffer.payload(name)[1] for name in names})

    def tensors(self, batch: LeasedBatch, rows: int) -> dict[str, torch.Tensor]:
        """SHOWN for `rows` rows, and the tensors of every image; empty when no row shows any."""
        if not batch.images:
            return {}
        numbers = {name: number for number, name in enumerate(batch.images)}
        shown = [[numbers[name] for name in names] for names in batch.table.column("payloads").to_pylist()]
        most = max(map(len, shown))
        places = torch.full((rows, most), -1)
        for row, found in enumerate(shown):
            places[row, : len(found)] = torch.tensor(found, dtype=torch.int64)
        made = {SHOWN: places}
        for name, number in numbers.items():
            for key, tensor in self._made(batch.images[name]).items():
                made[f"{TENSORS}{number}.{key}"] = tensor
        return made

    def inputs(
        self, part: Mapping[str, torch.Tensor], ids: torch.Tensor, model: PreTrainedModel
    ) -> dict[str, Any]:
        """Inputs of the forward pass of a micro-batch beside its (B, T) token ids.

        With `num_images`, the images of each row, which only TRL's own scoring reads.
        """
        if SHOWN not in part:
            return {}
        shown = part[SHOWN]
        order = shown[shown >= 0].tolist()
        if not order:
            return {}
        names = [name for name in _INPUTS if f"{TENSORS}{order[0]}.{name}" in part]
        joined = {name: torch.cat([part[f"{TENSORS}{n}.{name}"] for n in order]) for name in names}
        taken = inspect.signature(type(model).forward).parameters
        kinds = {name: torch.eq(ids, self._placeholder).long() for name in _KINDS if name in taken}
        return {**joined, **kinds, "num_images": (shown >= 0).sum(1).tolist()}

    def _made(self, data: bytes) -> dict[str, torch.Tensor]:
        image = need("PIL.Image", "images", "images in rows").open(io.BytesIO(data)).convert("RGB")
        found = self._processor(images=[image], return_tensors="pt")
        return {name: found[name] for name in _INPUTS if name in found}


def model_images(model_path: Path, settings: Mapping[str, object]) -> Images | None:
    """For the trainer of a model that looks at images; None for any other.

    Args: settings: the objective's.
    Raises: RecipeError for what cannot be trained with images.
    """
    if not takes_images(model_path):
        return None
    for name in ("critic", "lora"):
        if settings.get(name) is not None:
            raise RecipeError(
                f"the stage has '{name}', and the model in '{model_path}' looks at images, which that part "
                "does not; remove it (train all weights, with an algorithm without a critic)."
            )
    return Images(model_path)
