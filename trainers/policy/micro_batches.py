"""Deals the rows of a lease to micro-batches and ranks, with little padding and equal work for all ranks.

TRL shuffles rows and cuts them into equal parts, each as wide as the longest row of all. Here rows of similar
length are put together and each micro-batch is cut to its own longest row. Where a loss is reduced over the
whole step this changes no gradient. No model is run here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from trl import GRPOConfig

from trainers.policy.images import SHOWN, TENSORS

RANK, MICRO_BATCH = "rank", "micro_batch"
"""(R,) tensors of a dealt batch: the rank that trains on a row, and the number of its micro-batch."""

_PROMPT_TENSORS = ("prompt_ids", "prompt_mask")
MEAN_OF_ROW_MEANS = frozenset({"grpo", "sapo"})
"""TRL's losses that average over each row's tokens, then over the rows of each micro-batch."""
MEAN_OVER_ROWS = MEAN_OF_ROW_MEANS | {"dr_grpo", "luspo"}
"""TRL's losses that average over the rows of each micro-batch; the last two sum over each row's tokens."""
SUM_OVER_TOKENS = frozenset({"dapo", "cispo", "vespo"})
"""Those that divide by the tokens of the whole step. The others average over each micro-batch's tokens."""


@dataclass(frozen=True, slots=True)
class Dealing:
    """How rows may be dealt without a change of the gradient."""

    by_length: bool
    """Whether rows of similar length may be put together; otherwise rows are shuffled, as TRL does."""
    equal_rows: bool
    """Whether every micro-batch must have as many rows as every other."""


def allowed_dealing(args: GRPOConfig, *, own_loss: bool) -> Dealing:
    """The dealing that the loss allows; `own_loss`: it is one of ours, reduced over the whole step.

    TRL's losses that average over the tokens of each micro-batch (bnpo, and every entropy term) depend on
    which rows are together. TRL's losses that average over its rows depend only on how many rows there are.
    """
    entropy = args.entropy_coef != 0.0 and not own_loss
    averaged = args.loss_type not in MEAN_OVER_ROWS | SUM_OVER_TOKENS and not own_loss
    by_length = not (averaged or entropy or args.use_adaptive_entropy or args.top_entropy_quantile < 1.0)
    return Dealing(by_length, not own_loss and (not by_length or args.loss_type in MEAN_OVER_ROWS))


def deal(
    batch: dict[str, torch.Tensor], dealing: Dealing, *, micro_batches: int, ranks: int, seed: int
) -> dict[str, torch.Tensor]:
    """Rank and micro-batch of each of the R rows of a collated batch.

    Every rank gets R / ranks rows in `micro_batches` micro-batches, at least one row in each. The k-th
    micro-batches of all ranks have the same number of rows, since TRL gathers one number per row. By length:
    rows are sorted, cut so that the largest micro-batch (rows x width) is as small as possible, and each part
    is dealt to the ranks one row at a time. R is a multiple of ranks x micro-batches.

    Args: seed: of the shuffle, where rows are not dealt by length.
    Returns: `RANK` and `MICRO_BATCH`, (R,) int64.
    """
    rows = len(batch["prompt_ids"])
    prompts, completions = batch["prompt_mask"].sum(1), batch["completion_mask"].sum(1)
    slots = rows // ranks
    if dealing.by_length:
        order = torch.argsort(prompts + completions, descending=True, stable=True)
    else:
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    if dealing.by_length and not dealing.equal_rows:
        wide = torch.stack([prompts, completions])[:, order].reshape(2, slots, ranks).amax(dim=2)
        sizes = _balanced(wide[0].tolist(), wide[1].tolist(), micro_batches)
    else:
        sizes = [slots // micro_batches] * micro_batches
    owner = torch.arange(ranks).repeat(slots, 1)
    # back and forth: the rank that got the longest row of one round gets the shortest of the next
    owner[1::2] = owner[1::2].flip(1)
    micro_batch = torch.repeat_interleave(torch.arange(micro_batches), torch.tensor(sizes))
    dealt = torch.empty(2, rows, dtype=torch.int64)
    dealt[0, order] = owner.flatten()
    dealt[1, order] = micro_batch.repeat_interleave(ranks)
    return {RANK: dealt[0], MICRO_BATCH: dealt[1]}


def rank_micro_batches(batch: dict[str, torch.Tensor], rank: int) -> list[dict[str, torch.Tensor]]:
    """The micro-batches of one rank, in order, each cut to its own longest prompt and completion."""
    return [trimmed(batch, rows) for rows in micro_batch_rows(batch, rank)]


def micro_batch_rows(batch: dict[str, torch.Tensor], rank: int) -> list[torch.Tensor]:
    """The row numbers of each micro-batch of one rank."""
    count = int(batch[MICRO_BATCH].max()) + 1
    mine = batch[RANK] == rank
    return [(mine & (batch[MICRO_BATCH] == k)).nonzero().flatten() for k in range(count)]


def trimmed(batch: dict[str, torch.Tensor], rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Some rows of a collated batch, without the columns that are padding in all of these rows.

    Prompt tensors lose columns on the left, all other tensors on the right; at least one column stays. 0-dim
    tensors and those of images belong to the whole step and are not changed.
    """
    prompt = max(1, int(batch["prompt_mask"][rows].sum(1).max()))
    completion = max(1, int(batch["completion_mask"][rows].sum(1).max()))
    out = {}
    for name, tensor in batch.items():
        if tensor.dim() == 0 or name.startswith(TENSORS):
            out[name] = tensor
        elif name == SHOWN:
            out[name] = tensor[rows]
        elif name in _PROMPT_TENSORS:
            out[name] = tensor[rows, -prompt:]
        else:
            out[name] = tensor[rows] if tensor.dim() == 1 else tensor[rows, :completion]
    return out


def _balanced(prompts: list[int], completions: list[int], parts: int) -> list[int]:
    """Sizes of `parts` consecutive parts whose largest area (size x width) is as small as possible."""
    low, high = 1, len(prompts) * (max(prompts) + max(completions, default=0))
    while low < high:
        limit = (low + high) // 2
        if len(_cut(prompts, completions, limit)) <= parts:
            high = limit
        else:
            low = limit + 1
    sizes = _cut(prompts, completions, low)
    while len(sizes) < parts:  # splitting a part makes no area larger
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[largest : largest + 1] = [sizes[largest] - sizes[largest] // 2, sizes[largest] // 2]
    return sizes


def _cut(prompts: list[int], completions: list[int], limit: int) -> list[int]:
    """Sizes of consecutive parts, each as large as fits `limit` (but at least one)."""
    sizes, size, prompt, completion = [], 0, 0, 0
    for p, c in zip(prompts, completions, strict=True):
        wider = max(prompt, p), max(completion, c)
        if size and (size + 1) * sum(wider) > limit:
            sizes.append(size)
            size, wider = 0, (p, c)
        size, (prompt, completion) = size + 1, wider
    return [*sizes, size]
