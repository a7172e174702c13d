"""Log probabilities and entropies of completions on a CPU, without logits of the prompts.

Without a Triton kernel TRL's fused head also scores prompts, and holds several copies of its tile: with 110
million parameters a step takes 1.3 times as long and 1.7 GB more. On accelerators, and for heads that are
more than one linear map, TRL's head is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap
from types import MappingProxyType
from typing import Protocol

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from rft_data.core.errors import TrainingError

_TILE_BYTES = 1 << 25
"""Logits made at a time, in bytes."""
_KEPT_BYTES = 1 << 28
"""Most bytes of probabilities kept for the backward pass; with more, they are computed there again."""
_ADJUSTED = (
    *("final_logit_softcapping", "logit_scale", "output_multiplier"),
    *("lm_head_multiplier", "logits_scaling", "logits_soft_cap", "output_logit_soft_cap"),
)
"""Configuration fields of models that change the logits after the linear map."""


def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether the logits of `model` are its last hidden state times a weight, in float32 on a CPU."""
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    return (
        type(head) is torch.nn.Linear
        and head.bias is None
        and head.weight.device.type == "cpu"
        and type(head.weight) is torch.nn.Parameter  # not spread over ranks
        and not hasattr(head.weight, "ds_id")
        and head.weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and all(getattr(config, name, None) in (None, 1) for name in _ADJUSTED)
    )


def score(
    model: PreTrainedModel,
    head: torch.Tensor,
    ids: torch.Tensor,
    attended: torch.Tensor,
    kept: int,
    temperature: float,
    seen: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log probabilities of the tokens in the last `kept` columns, and entropies of their distributions, nats.

    Args:
        model: a causal language model or a wrapper of it, called as a module.
        head: (V, H) weight of its output embeddings.
        ids: (B, T) token ids; T > kept.
        attended: (B, T), 1 where there is a token; elsewhere both results are 0.
        temperature: divides the logits.
        seen: what else the model takes, for images.
    Returns: (B, kept) twice, with gradients.
    Raises: TrainingError when the model changes its logits after the linear map.
    """
    out = model(
        input_ids=ids,
        attention_mask=attended,
        logits_to_keep=1,
        output_hidden_states=True,
        use_cache=False,
        **seen,
    )
    _require_plain(out, head)
    hidden = out.hidden_states[-1][:, -kept - 1 : -1]
    del out  # frees the hidden states of all other layers
    real = attended[:, -kept:] == 1
    logprobs, entropies = _Scores.apply(hidden[real], head, ids[:, -kept:][real], temperature)
    empty = torch.zeros(real.shape, dtype=hidden.dtype)
    return empty.masked_scatter(real, logprobs), empty.masked_scatter(real, entropies)


@torch.no_grad()
def _require_plain(out: CausalLMOutputWithPast, head: torch.Tensor) -> None:
    """Compare the last logits of one row, which the model has computed, with the linear map."""
    expected = out.hidden_states[-1][:1, -1] @ head.t()
    if not torch.allclose(out.logits[:1, -1], expected, rtol=1e-3, atol=1e-3):
        raise TrainingError(
            "the model changes its logits after the linear head, in a way its configuration does not tell; "
            "train it on a GPU, or with trl: {bf16: true}, where TRL's own head is used."
        )


class _Context(Protocol):
    """Values that `_Scores` keeps from the forward pass for the backward pass; torch makes it."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[torch.Tensor, ...]
    tiles: dict[int, torch.Tensor]
    """Probabilities by the first token of their tile."""
    temperature: float

    def save_for_backward(self, *tensors: torch.Tensor) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...


class _Scores(torch.autograd.Function):
    """log softmax(h W' / temperature) at the targets, and the entropies, one tile of tokens at a time."""

    @staticmethod
    def forward(
        ctx: _Context, hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        keep = ctx.needs_input_grad[0] and 4 * len(hidden) * len(head) <= _KEPT_BYTES
        ctx.tiles, ctx.temperature = {}, temperature
        logprobs, entropies = hidden.new_empty(len(hidden)), hidden.new_empty(len(hidden))
        for rows in _tiles(len(hidden), len(head)):
            logits = _logits(hidden[rows], head, temperature)
            normal, tile = logits.logsumexp(1), torch.softmax(logits, 1)
            logprobs[rows] = logits.gather(1, targets[rows, None])[:, 0] - normal
            entropies[rows] = normal - torch.linalg.vecdot(tile, logits)
            if keep:
                ctx.tiles[rows.start] = tile
        ctx.save_for_backward(hidden, head, targets, entropies)
        return logprobs, entropies

    @staticmethod
    def backward(
        ctx: _Context, to_logprobs: torch.Tensor | None, to_entropies: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        hidden, head, targets, entropies = ctx.saved_tensors
        to_hidden, to_head = torch.zeros_like(hidden), None
        if ctx.needs_input_grad[1]:
            to_head = torch.zeros_like(head)
        given = torch.zeros_like(entropies) if to_logprobs is None else to_logprobs
        for rows in _tiles(len(hidden), len(head)):
            tile = ctx.tiles.pop(rows.start, None)
            if tile is None:
                tile = torch.softmax(_logits(hidden[rows], head, ctx.temperature), 1)
            factor = given[rows, None]
            if to_entropies is not None:
                # dH/dz_j = -p_j (log p_j + H)
                surprise = tile.clamp_min(torch.finfo(tile.dtype).tiny).log() + entropies[rows, None]
                factor = factor + to_entropies[rows, None] * surprise
            tile *= -factor
            tile.scatter_add_(1, targets[rows, None], given[rows, None])
            tile /= ctx.temperature
            torch.mm(tile, head, out=to_hidden[rows])
            if to_head is not None:
                to_head.addmm_(tile.t(), hidden[rows])
        return to_hidden, to_head, None, None


def _logits(hidden: torch.Tensor, head: torch.Tensor, temperature: float) -> torch.Tensor:
    return (hidden @ head.t()).div_(temperature)


def _tiles(tokens: int, vocabulary: int) -> list[slice]:
    size = max(1, _TILE_BYTES // (4 * vocabulary))
    starts = range(0, tokens, size)
    return list(starmap(slice, ((start, min(start + size, tokens)) for start in starts)))
