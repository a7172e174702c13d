"""The shapes of a model's tensors, read from the headers of its files or computed from the recipe."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft_data.core.errors import IntegrityError, MissingFileError
from rft_data.recipe.kinds import that_measures
from rft_data.recipe.recipe import RunRecipe
from rft_data.recipe.sections import Model, TinyModel
from rft_data.run.build import model_folders

Shapes = Mapping[str, tuple[int, ...]]
_TINY_VOCABULARY = 1024
"""The most tokens that the tokenizer of a tiny model can have."""
_PEFT_DEFAULT = ("q_proj", "v_proj")
"""Layers that PEFT adapts in most families where `target_modules` is left out."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The shapes and widths from which a model's memory is computed."""

    shapes: Shapes
    """The shape of every tensor, by its name in the file."""
    layers: int
    hidden: int
    intermediate: int
    """Width of the feed-forward part that one token passes through."""
    key_values: int
    """Number of key heads x size of a head."""
    vocabulary: int
    context: int | None = None
    """Longest sequence that it was made for; None: its config does not say."""

    @property
    def parameters(self) -> int:
        """The number of all parameters."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def gathered_parameters(self) -> int:
        """The most parameters that a process holds at a time where each keeps a part: the largest layer, and
        everything outside the layers."""
        layers: Counter[str] = Counter()
        for name, shape in self.shapes.items():
            _, inside, rest = name.partition("layers.")
            layers[rest.partition(".")[0] if inside else ""] += math.prod(shape)
        outside = layers.pop("", 0)
        return outside + max(layers.values(), default=0)

    def adapter_parameters(self, lora: Mapping[str, Any]) -> int:
        """Parameters of a LoRA adapter (arXiv:2106.09685): rank x (inputs + outputs) for each target."""
        rank, targets = int(lora.get("r", 8)), lora.get("target_modules", _PEFT_DEFAULT)
        return sum(rank * sum(shape) for name, shape in self.shapes.items() if _adapts(targets, name, shape))


def folder_size(folder: Path) -> ModelSize | None:
    """The size of the model in a Hugging Face folder; None where there is none with safetensors files.

    Raises: IntegrityError when one of its files is damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        return None
    try:
        whole = json.loads((folder / "config.json").read_text())
        shapes = {name: shape for file in files for name, shape in _heads(file)}
        config = whole.get("text_config", whole)
        return ModelSize(
            shapes=shapes,
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            intermediate=token_width(config),
            key_values=key_widths(config)[1],
            vocabulary=int(config["vocab_size"]),
            context=context_length(config),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise IntegrityError(
            f"model '{folder}' cannot be sized up ({type(err).__name__}: {err}): config.json and the heads "
            "of its safetensors files do not say; copy it again."
        ) from err


def key_widths(config: Mapping[str, Any]) -> tuple[int, int]:
    """Size of a head, and number of key heads x that."""
    heads = int(config["num_attention_heads"])
    size = int(config.get("head_dim") or config["hidden_size"] // heads)
    return size, int(config.get("num_key_value_heads") or heads) * size


def token_width(config: Mapping[str, Any]) -> int:
    """Width of the feed-forward part that a token passes through: in a mixture, of its experts together."""
    wide = int(config["intermediate_size"])
    if (chosen := config.get("num_experts_per_tok")) is None:
        return wide
    return int(chosen) * int(config.get("moe_intermediate_size") or wide)


def context_length(config: Mapping[str, Any]) -> int | None:
    """Longest sequence, as a config says."""
    found = config.get("max_position_embeddings")
    return found if isinstance(found, int) and found > 0 else None


Look = Callable[[Path], ModelSize | None]
"""Gives the size of the model in a folder; None where there is no model."""


def model_size(model: Model, look: Look = folder_size) -> ModelSize | None:
    """The size of a recipe's model; None where it is not a folder of this machine."""
    return _tiny(model.build) if model.build is not None else look(Path(str(model.path)))


def played_models(recipe: RunRecipe, *, here: bool) -> list[Model]:
    """The models of a run: the policy; of one that measures, those whose folders are there now.

    Args: here: whether folders of this machine may be looked for.
    """
    if (measures := that_measures(recipe)) is not None:
        return [Model(path=str(one)) for named in measures.models if here for one in _there(named)]
    return [] if recipe.starts_from is None else [recipe.starts_from]


def _there(named: str) -> list[Path]:
    try:
        return model_folders(named)
    except MissingFileError:
        return []


def _heads(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in a safetensors file: 8 bytes of length, then JSON."""
    with file.open("rb") as stream:
        head = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    for name, tensor in head.items():
        if name != "__metadata__":
            yield name, tuple(tensor["shape"])


def _tiny(build: TinyModel) -> ModelSize:
    """Upper bound of a tiny Qwen2, whose embedding is also its head."""
    h, wide = build.hidden_size, build.intermediate_size
    layer: dict[str, tuple[int, ...]] = {f"self_attn.{one}_proj.weight": (h, h) for one in "qkvo"}
    layer |= {f"self_attn.{one}_proj.bias": (h,) for one in "qkv"}
    layer |= {"mlp.gate_proj.weight": (wide, h), "mlp.up_proj.weight": (wide, h)}
    layer |= {"mlp.down_proj.weight": (h, wide)}
    layer |= {"input_layernorm.weight": (h,), "post_attention_layernorm.weight": (h,)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (_TINY_VOCABULARY, h)}
    shapes["model.norm.weight"] = (h,)
    for number in range(build.num_layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return ModelSize(shapes, build.num_layers, h, wide, h, _TINY_VOCABULARY, build.max_position_embeddings)


def _adapts(targets: object, name: str, shape: tuple[int, ...]) -> bool:
    layer = name.removesuffix(".weight").rpartition(".")[2]
    if len(shape) != 2 or not name.endswith(".weight"):
        return False
    if targets == "all-linear":
        return layer.endswith("proj")
    return layer in (targets if isinstance(targets, list | tuple) else (targets,))
