"""Which policy version an engine has proved to serve, and the one order in which it may load the next.

Both engines share this. It knows weight directories and the probe, but no model and no engine library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from rft_data.errors import EngineError, IntegrityError, MissingFileError, ParityError, RowError
from rft_data.lookup import need
from rft_data.probe import Probe
from rft_data.rows import WeightRef

if TYPE_CHECKING:
    import torch

Shapes = dict[str, tuple[int, ...]]

TIED_HEAD = "lm_head.weight"
"""Equal to the input embedding when the two are tied; such checkpoints may hold or omit it."""

_NAMED = 5


class Proof:
    """The proven version, and what must hold before another one may be served.

    Versions only grow. Loading the very reference that is being served does nothing and returns the
    difference it was proved with. A directory that is incomplete leaves the served version as it is;
    one that fails its probe leaves none, until a good load.
    """

    def __init__(self, model_path: Path) -> None:
        """`model_path`: the folder the engine was built from; its tensors are what a load must bring.

        Raises: MissingFileError when it holds no model in safetensors.
        """
        need("transformers", "train", "serving a model")
        from transformers import AutoConfig

        if not (model_path / "config.json").is_file() or not weight_files(model_path):
            raise MissingFileError(
                f"'{model_path}' is not a model folder: wanted config.json and *.safetensors in it; "
                "give a Hugging Face folder saved with safetensors."
            )
        config = AutoConfig.from_pretrained(model_path).get_text_config()
        self.tied = bool(config.tie_word_embeddings)
        self._expected = tensor_shapes(model_path)
        self._ref: WeightRef | None = None
        self._difference = 0.0
        self._newest = -1

    @property
    def version(self) -> int:
        """The proven version.

        Raises: ParityError when there is none.
        """
        if self._ref is None:
            raise ParityError(
                "the engine holds no proven weights, so it serves nothing; call load_weights with a "
                "published weight directory first."
            )
        return self._ref.version

    def revoke(self) -> None:
        """Serve nothing until the next good load."""
        self._ref = None

    def load(
        self,
        ref: WeightRef,
        apply: Callable[[Path], None],
        score: Callable[[Sequence[Sequence[int]]], list[npt.NDArray[np.float32]]],
        tolerance: float,
    ) -> float:
        """Check the directory, `apply` it, and prove it with the logprobs that `score` measures.

        Returns: the largest absolute difference on the probe (nats).
        Raises: EngineError for a version that does not grow, IntegrityError for an incomplete directory
            (the old weights are still served), ParityError above `tolerance` (nothing is served).
        """
        if ref == self._ref:
            return self._difference
        if ref.version < self._newest or (self._ref is not None and ref.version == self._newest):
            raise EngineError(
                f"weights of version {ref.version} ({ref.path}) came after version {self._newest}; "
                "versions only grow: publish them as a new version."
            )
        directory = Path(ref.path)
        probe = Probe.load(directory)
        self._check_complete(directory)
        self.revoke()
        apply(directory)
        self._difference = probe.check(score(probe.token_ids), tolerance, f"version {ref.version}")
        self._ref = ref
        self._newest = ref.version
        return self._difference

    def _check_complete(self, directory: Path) -> None:
        """Compare names and shapes with the model's: vLLM keeps old values for what is absent, silently."""
        found = tensor_shapes(directory)
        optional = {TIED_HEAD} if self.tied else set()
        missing = self._expected.keys() - found.keys() - optional
        extra = found.keys() - self._expected.keys() - optional
        reshaped = {
            f"{name} {list(found[name])} for {list(shape)}"
            for name, shape in self._expected.items()
            if name in found and found[name] != shape
        }
        problems = {"missing": missing, "not of this model": extra, "of another shape": reshaped}
        if any(problems.values()):
            listed = "; ".join(f"{what}: {_listed(names)}" for what, names in problems.items() if names)
            raise IntegrityError(
                f"weight directory {directory} does not hold this model's {len(self._expected)} tensors "
                f"({listed}); the weights served before are still served: publish again."
            )


def weight_files(directory: Path) -> list[Path]:
    """The model's safetensors files in a folder, in order of name; the probe has a folder of its own."""
    return sorted(directory.glob("*.safetensors"))


def tensor_shapes(directory: Path) -> Shapes:
    """Name and shape of every tensor in a folder's safetensors files; reads only their headers.

    Raises: IntegrityError if a file is not safetensors or is cut short.
    """
    shapes: Shapes = {}
    for path in weight_files(directory):
        try:
            with safe_open(path, framework="numpy") as file:
                shapes.update({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
        except SafetensorError as err:
            raise IntegrityError(f"{path} is not a whole safetensors file ({err}); publish again.") from err
    return shapes


def load_tensors(directory: Path, tied: bool) -> dict[str, torch.Tensor]:
    """Every tensor of a weight directory; without the output head when it is tied to the embedding."""
    return {name: tensor for name, tensor in iterate_tensors(directory) if not (tied and name == TIED_HEAD)}


def iterate_tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of everything in a folder's safetensors files, read one at a time."""
    for path in weight_files(directory):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)


def check_room(prompt_ids: Sequence[int], max_model_len: int) -> None:
    """Raises: RowError when a prompt is empty or leaves no room for a completion."""
    if not 0 < len(prompt_ids) < max_model_len:
        raise RowError(
            f"a prompt of {len(prompt_ids)} tokens cannot be completed within max_model_len "
            f"{max_model_len}; wanted 1 to {max_model_len - 1} tokens: "
            "raise explorer.engine.max_model_len or drop the task."
        )


def check_idle(ref: WeightRef, in_flight: int) -> None:
    """Raises: EngineError when requests are in flight while `ref` is to be loaded."""
    if in_flight:
        raise EngineError(
            f"version {ref.version} was to be loaded with {in_flight} requests in flight; "
            "wait for them first."
        )


def tolerance_of(dtype: str) -> float:
    """How far logprobs may be off the trainer's (nats) in an engine that computes in `dtype`."""
    return 1e-3 if "float32" in dtype else 0.1


def end_token_ids(model_path: Path) -> list[int]:
    """The ids that end a completion: the generation config's, the config's and the tokenizer's."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    found: set[int] = set()
    sources = [AutoConfig.from_pretrained(model_path).get_text_config()]
    if (model_path / "generation_config.json").is_file():
        sources.append(GenerationConfig.from_pretrained(model_path))
    if (model_path / "tokenizer_config.json").is_file():
        sources.append(AutoTokenizer.from_pretrained(model_path))
    for source in sources:
        ids = source.eos_token_id
        found.update([ids] if isinstance(ids, int) else ids or [])
    return sorted(found)


def _listed(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
