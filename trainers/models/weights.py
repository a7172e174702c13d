"""Weight directories that an engine can serve: safetensors, config, tokenizer and probe.

All weights are written here, of a model in training and of one that was never trained. Publishing them under
a policy version is done elsewhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from transformers.utils.logging import disable_progress_bar

from rft_data.core.absent import absent
from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.core.files import read_manifest
from rft_data.core.model_folder import PROCESSOR_FILES, takes_images
from rft_data.core.vocabulary import with_tokens
from rft_data.weights.adapter import ADAPTER_FILE, adapter_in, check_base, merged
from rft_data.weights.probe import Probe
from trainers.models.options import loading_options

with absent("sklearn"):  # wanted by transformers' assisted generation alone, and 0.7 s of CPU time
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoTokenizer,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )

if TYPE_CHECKING:
    from accelerate import Accelerator

# One progress bar per file would hide the run's own progress.
disable_progress_bar()

_PROBE_SEQUENCES = 2
_PROBE_TOKENS = 24
_PROBE_SEED = 0


def load_model(model_path: Path, **kwargs: object) -> PreTrainedModel:
    """The language model in `model_path`, which may look at images; float32 unless `dtype` says otherwise.

    Raises: MissingFileError when there is no such folder.
    """
    _require_folder(model_path)
    kind = AutoModelForImageTextToText if takes_images(Path(model_path)) else AutoModelForCausalLM
    return kind.from_pretrained(model_path, **{"dtype": torch.float32, **kwargs})


def load_tokenizer(model_path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in `model_path`.

    Raises: MissingFileError when there is no such folder; RecipeError when it has no tokens but special ones.
    """
    _require_folder(model_path)
    return with_tokens(AutoTokenizer.from_pretrained(model_path), model_path)


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token id written where masks are 0: the tokenizer's padding token, else its end of sequence."""
    return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)


def load_policy(
    source: Path, model_path: Path, teacher: str | None, options: Mapping[str, object]
) -> PreTrainedModel:
    """The model to train, with the weights in `source`; TRL's reference is `teacher`, else `model_path`.

    Args: model_path: folder of the policy before training. options: the recipe's `trl: {...}`.
    Raises: MissingFileError when there is no such folder; RecipeError when the teacher has another
        vocabulary, since its logprobs would be of other tokens.
    """
    if teacher and load_tokenizer(model_path).get_vocab() != load_tokenizer(Path(teacher)).get_vocab():
        raise RecipeError(
            f"the model in '{teacher}' has another vocabulary than the policy; give a teacher with the "
            "same tokenizer."
        )
    model = load_model(source, **loading_options(options))
    # TRL loads the reference model from here; a resumed policy must not be its own reference.
    model.config._name_or_path = str(teacher or model_path)
    return model


def publishable(model_path: Path, directory: Path) -> None:
    """Write the model in `model_path` as whole weights, with a probe, into the existing folder `directory`.

    Args: model_path: a model folder, or a published version that is an adapter.
    Raises: IntegrityError, MissingFileError when the adapter or its base is not what was published.
    """
    adapter = adapter_in(model_path)
    if adapter is None:
        write_weights(load_model(model_path), load_tokenizer(model_path), directory)
        copy_processor(model_path, directory)
        return
    read_manifest(model_path)
    check_base(adapter)
    base = Path(adapter["base"])
    model = load_merged(base, load_file(model_path / ADAPTER_FILE), adapter["scales"])
    write_weights(model, load_tokenizer(base), directory)


def load_merged(
    base: Path, adapter: Mapping[str, torch.Tensor], scales: Mapping[str, float]
) -> PreTrainedModel:
    """The model in `base` with an adapter merged in; see `rft_data.weights.adapter.merged`."""
    model = load_model(base)
    held = model.state_dict()
    for name, tensor in merged(((name, held[name]) for name in scales), adapter, scales):
        held[name].copy_(tensor)
    return model


def write_weights(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    state: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write safetensors, config, tokenizer and the probe into the existing folder `directory`.

    `state`: the tensors to write instead of the model's own (gathered from ranks, or merged). The probe is
    then made from the files, read back.
    """
    model.save_pretrained(directory, state_dict=state)
    tokenizer.save_pretrained(directory)
    write_probe(model if state is None else load_model(directory), tokenizer, directory)


def copy_processor(model_path: Path, directory: Path) -> None:
    """Copy the files that say how images become tensors, where the model in `model_path` has them."""
    for name in PROCESSOR_FILES:
        if (model_path / name).is_file():
            shutil.copyfile(model_path / name, directory / name)


def gathered_state(
    model: torch.nn.Module, wrapped: torch.nn.Module, accelerator: Accelerator, *, trained_only: bool = False
) -> dict[str, torch.Tensor] | None:
    """All tensors of a model that is sharded over ranks (FSDP2, ZeRO-3); None where each rank has all of it.

    Every rank must call it; with FSDP2 only rank 0 receives the tensors, the others an empty dict.

    Args:
        wrapped: `model` as accelerate wrapped it.
        trained_only: with FSDP2, leave out frozen tensors (but a tied head), which saves gathering them.
    """
    state = whole_state(model, trained_only=trained_only)
    if state is not None:
        return state
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):  # ZeRO-3
        gathered: dict[str, torch.Tensor] = accelerator.get_state_dict(wrapped)
        return gathered
    return None


def whole_state(model: torch.nn.Module, *, trained_only: bool = False) -> dict[str, torch.Tensor] | None:
    """All tensors of a model that FSDP2 has split, as `gathered_state`; None where it has not split it."""
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return None
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=trained_only)
    # torch's type also covers other values; a model's state dict holds tensors
    state = cast("dict[str, torch.Tensor]", get_model_state_dict(model, options=options))
    # A parameter with two names was gathered twice; it is one tensor again, or it would be written twice.
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if name in state and other in state:
            state[name] = state[other]
    return state


def write_probe(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write the probe: the model's logprobs (nats, temperature 1, eval mode) of fixed sequences."""
    token_ids = _probe_ids(tokenizer, model.config.get_text_config().vocab_size)
    Probe(token_ids, tuple(_logprobs(model, ids) for ids in token_ids)).save(directory)


def _probe_ids(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    ordinary = sorted(set(range(min(len(tokenizer), vocab_size))) - set(tokenizer.all_special_ids))
    drawn = np.random.default_rng(_PROBE_SEED).choice(ordinary, size=(_PROBE_SEQUENCES, _PROBE_TOKENS))
    return tuple(tuple(int(i) for i in row) for row in drawn)


@torch.no_grad()
def _logprobs(model: PreTrainedModel, token_ids: tuple[int, ...]) -> npt.NDArray[np.float32]:
    ids = torch.tensor([token_ids], device=model.device)
    was_training = model.training
    model.eval()
    # The class's own forward: trainers patch the instance's (autocast, fused heads).
    logits = type(model).forward(model, input_ids=ids, use_cache=False).logits[0, :-1]
    model.train(was_training)
    scored = torch.log_softmax(logits.float(), dim=-1).gather(1, ids[0, 1:, None])[:, 0]
    return np.concatenate([np.zeros(1, np.float32), scored.cpu().numpy()])


def _require_folder(model_path: Path) -> None:
    if not Path(model_path).is_dir():
        raise MissingFileError(
            f"there is no model folder '{model_path}'; give a folder with config.json and *.safetensors "
            "(download a hub model first)."
        )
