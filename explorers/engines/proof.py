"""The policy version that an engine has proved, and the checks before it may serve another one.

Both engines use it. It reads manifests and the probe, and depends on no transport and no engine library.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rft_data.core.errors import (
    ContextOverflow,
    EngineError,
    IntegrityError,
    MissingFileError,
    ParityError,
    RowError,
)
from rft_data.core.files import Tensors, tensors_in, weight_files
from rft_data.core.lookup import need
from rft_data.core.rows import WeightRef
from rft_data.weights.probe import Probe

TIED_HEAD = "lm_head.weight"
"""Equal to the input embedding when the two are tied; such checkpoints may hold or omit it."""

_NAMED = 5


class Proof:
    """The proven version, and the checks of the next one.

    Versions only grow. Loading the reference that is being served changes nothing and returns the difference
    of its first load. After an incomplete directory the old version is still served. After weights that fail
    the probe nothing is served until a good load.
    """

    def __init__(self, model_path: Path) -> None:
        """`model_path`: the folder the engine was built from; a load must have the same tensors.

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
        self._expected = {name: shape for name, (_, shape) in tensors_in(model_path).items()}
        self._ref: WeightRef | None = None
        self.difference = 0.0
        """Largest absolute logprob difference (nats) on the probe, of the last good load."""
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

    def serves(self, ref: WeightRef) -> bool:
        """Whether `ref` is served already.

        Raises: EngineError for a version that does not grow.
        """
        if ref == self._ref:
            return True
        if ref.version < self._newest or (self._ref is not None and ref.version == self._newest):
            raise EngineError(
                f"weights of version {ref.version} ({ref.path}) came after version {self._newest}; "
                "versions only grow: publish them as a new version."
            )
        return False

    def prove(
        self, ref: WeightRef, probe: Probe, measured: Sequence[npt.NDArray[np.float32]], tolerance: float
    ) -> None:
        """Check the measured logprobs of the probe; on success `ref` is served.

        Raises: ParityError for a difference above `tolerance` (nats); then nothing is served.
        """
        self.difference = probe.check(measured, tolerance, f"version {ref.version}")
        self._ref = ref
        self._newest = ref.version

    def check_complete(self, tensors: Tensors) -> None:
        """Compare names and shapes with the model's: vLLM keeps old values of missing tensors silently.

        Raises: IntegrityError naming what differs.
        """
        found = {name: shape for name, (_, shape) in tensors.items()}
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
                f"the published weights are not this model's {len(self._expected)} tensors ({listed}); "
                "the weights served before are still served: publish again."
            )


def check_prompt(prompt_ids: Sequence[int], max_model_len: int, vocabulary: int) -> None:
    """Raises: ContextOverflow when a prompt is empty or leaves no room for a completion, RowError for an id
    that the model has no embedding of: within a batch it would fail the requests of others too."""
    check_room(len(prompt_ids), max_model_len)
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocabulary:
        wrong = next(one for one in prompt_ids if not 0 <= one < vocabulary)
        raise RowError(f"the prompt has the token id {wrong}; this model's go from 0 to {vocabulary - 1}.")


def check_room(tokens: int, max_model_len: int) -> None:
    """Raises: ContextOverflow when a prompt of so many tokens is empty or leaves no room for a completion."""
    if not 0 < tokens < max_model_len:
        raise ContextOverflow(
            f"a prompt of {tokens} tokens cannot be completed within max_model_len "
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


def probe_tolerance(dtype: str) -> float:
    """Largest allowed difference to the trainer's logprobs (nats) of an engine that computes in `dtype`."""
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
