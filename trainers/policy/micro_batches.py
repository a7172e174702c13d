"""Deals the rows of a lease to micro-batches and ranks, so that little is padded and all get equal work.

TRL shuffles rows and cuts them into equal parts as wide as the longest row of all. Here rows of like
length come together and each micro-batch is cut to its own longest row, which changes no gradient of a
loss that is reduced over the whole step. It runs no model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from trl import GRPOConfig

RANK, MICRO_BATCH = "rank", "micro_batch"
"""(R,) tensors of a dealt batch: which rank trains on a row, and in which of its micro-batches."""

_OF_PROMPTS = ("prompt_ids", "prompt_mask")
MEAN_OVER_ROWS = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})
"""TRL's losses that average over the rows of each micro-batch."""
SUM_OVER_TOKENS = frozenset({"dapo", "cispo", "vespo"})
"""Those that divide by the tokens of the whole step. The others average over each micro-batch's."""


@dataclass(frozen=True, slots=True)
class Dealing:
    """How rows may be dealt without changing the gradient."""

    by_length: bool
    """Whether rows of like length may be put together; otherwise rows are shuffled, as TRL does."""
    equal_rows: bool
    """Whether every micro-batch must have as many rows as every other."""


def allowed_dealing(args: GRPOConfig, *, own_loss: bool) -> Dealing:
    """What the loss allows. `own_loss`: one of ours, reduced over all tokens or rows of the step.

    TRL's losses that average over the tokens of each micro-batch (bnpo, and every entropy term) depend on
    which rows are together; those that average over its rows only on how many there are.
    """
    entropy = args.entropy_coef != 0.0 and not own_loss
    averaged = args.loss_type not in MEAN_OVER_ROWS | SUM_OVER_TOKENS and not own_loss
    by_length = not (averaged or entropy or args.use_adaptive_entropy or args.top_entropy_quantile < 1.0)
    return Dealing(by_length, not own_loss and (not by_length or args.loss_type in MEAN_OVER_ROWS))


def padded_rows(rows: int, *, micro_batches: int, ranks: int) -> int:
    """The least number of rows that is no less than `rows` and can be dealt out.

    Where there are several ranks it is a multiple of 2 x ranks x micro-batches (TRL wants an even batch on
    each rank); in one process it is `rows` itself, which then has to fit.
    """
    if ranks == 1:
        return rows
    unit = 2 * ranks * micro_batches
    return -(-rows // unit) * unit


def deal(
    batch: dict[str, torch.Tensor], dealing: Dealing, *, micro_batches: int, ranks: int, seed: int
) -> dict[str, torch.Tensor]:
    """Which rank and which micro-batch each of the R rows of a collated batch goes to.

    Every rank gets R / ranks rows in `micro_batches` micro-batches, at least one row in each, and at each of
    them as many rows as the other ranks, since TRL gathers one number per row. By length: rows are sorted,
    cut so that the largest micro-batch (rows x width) is as small as may be, and each cut is dealt to the
    ranks in turns. R is a multiple of ranks x micro-batches.

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
    owner[1::2] = owner[1::2].flip(
        1
    )  # there and back: whoever got the longest row of a turn gets the shortest next
    turn = torch.repeat_interleave(torch.arange(micro_batches), torch.tensor(sizes))
    dealt = torch.empty(2, rows, dtype=torch.int64)
    dealt[0, order] = owner.flatten()
    dealt[1, order] = turn.repeat_interleave(ranks)
    return {RANK: dealt[0], MICRO_BATCH: dealt[1]}


def rank_micro_batches(batch: dict[str, torch.Tensor], rank: int) -> list[dict[str, torch.Tensor]]:
    """The micro-batches of a rank, in order, each cut to its own longest prompt and completion."""
    return [trimmed(batch, rows) for rows in rows_of(batch, rank)]


def rows_of(batch: dict[str, torch.Tensor], rank: int) -> list[torch.Tensor]:
    """The rows, by number, of each micro-batch of a rank."""
    count = int(batch[MICRO_BATCH].max()) + 1
    mine = batch[RANK] == rank
    return [(mine & (batch[MICRO_BATCH] == k)).nonzero().flatten() for k in range(count)]


def trimmed(batch: dict[str, torch.Tensor], rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Some rows of a collated batch, without the columns that are padding in all of them.

    Prompts lose columns on the left, everything of the completions' width on the right; one column always
    stays. 0-dim tensors are of the whole step and stay as they are.
    """
    prompt = max(1, int(batch["prompt_mask"][rows].sum(1).max()))
    completion = max(1, int(batch["completion_mask"][rows].sum(1).max()))
    out = {}
    for name, tensor in batch.items():
        if tensor.dim() == 0:
            out[name] = tensor
        elif name in _OF_PROMPTS:
            out[name] = tensor[rows, -prompt:]
        else:
            out[name] = tensor[rows] if tensor.dim() == 1 else tensor[rows, :completion]
    return out


def _balanced(prompts: list[int], completions: list[int], parts: int) -> list[int]:
    """Sizes of `parts` consecutive parts, of which the largest area (size x width) is as small as may be."""
    low, high = 1, len(prompts) * (max(prompts) + max(completions, default=0))
    while low < high:
        limit = (low + high) // 2
        if len(_cut(prompts, completions, limit)) <= parts:
            high = limit
        else:
            low = limit + 1
    sizes = _cut(prompts, completions, low)
    while len(sizes) < parts:  # smaller ones do no harm
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
