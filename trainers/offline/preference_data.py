"""Token ids and masks of preferences as the datasets and batches that TRL's losses read.

Nothing is rendered or tokenised here, and no sequence is cut; TRL's own preparation would do both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from datasets import Dataset
from trl.trainer.utils import pad

from trainers.offline.answers import Answer, AnswerPair

PAIR_COLUMNS = ("chosen_ids", "chosen_mask", "rejected_ids", "rejected_mask")
KTO_COLUMNS = ("prompt_ids", "completion_ids", "completion_mask", "label")
KL_COLUMNS = ("KL_completion_ids", "KL_completion_mask")

Example: TypeAlias = Mapping[str, Any]
"""One row of a dataset: lists of ids and masks, and single numbers, by column."""


def pair_dataset(pairs: Sequence[AnswerPair]) -> Dataset:
    """One row a pair, prompt and answer together: PAIR_COLUMNS."""
    columns: dict[str, list[Sequence[int]]] = {
        "chosen_ids": [better.ids for better, _ in pairs],
        "chosen_mask": [better.mask for better, _ in pairs],
        "rejected_ids": [worse.ids for _, worse in pairs],
        "rejected_mask": [worse.mask for _, worse in pairs],
    }
    return Dataset.from_dict(columns)


def kto_dataset(answers: Sequence[Answer], labels: Sequence[bool], *, rotate: int | None) -> Dataset:
    """One row an answer: KTO_COLUMNS and, with `rotate`, KL_COLUMNS.

    KL_COLUMNS hold the answer and mask of the row before in the same batch (for the first row, of the last):
    the mismatched pairs on which the KL term is estimated (arXiv:2402.01306, section 4.1).

    Args: rotate: rows in a batch of one device; None: no KL term.
    """
    cut = [answer.prompt_length for answer in answers]
    completions = [answer.ids[at:] for answer, at in zip(answers, cut, strict=True)]
    masks = [answer.mask[at:] for answer, at in zip(answers, cut, strict=True)]
    columns: dict[str, Sequence[Sequence[int]] | Sequence[bool]] = {
        "prompt_ids": [answer.ids[:at] for answer, at in zip(answers, cut, strict=True)],
        "completion_ids": completions,
        "completion_mask": masks,
        "label": list(labels),
    }
    if rotate is not None:
        places = _rotated(len(answers), rotate)
        columns["KL_completion_ids"] = [completions[place] for place in places]
        columns["KL_completion_mask"] = [masks[place] for place in places]
    return Dataset.from_dict(columns)


def _rotated(rows: int, batch: int) -> list[int]:
    places: list[int] = []
    for start in range(0, rows, batch):
        end = min(start + batch, rows)
        places += [end - 1, *range(start, end - 1)]
    return places


def kto_order(rows: int, batch: int, seed: int) -> list[int]:
    """A shuffled order of `rows` rows; TRL itself does not shuffle the rows of KTO.

    A last batch of one row is left out, since its mismatched pair would be the row itself.
    """
    order: list[int] = np.random.default_rng(seed).permutation(rows).tolist()
    return order[:-1] if batch > 1 and rows % batch == 1 else order


@dataclass(frozen=True, slots=True)
class PairBatches:
    """The collator of pairs: first all chosen sequences, then all rejected, padded on the right."""

    pad_id: int
    multiple: int | None = None

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        """(2B, T) `input_ids`, `attention_mask` and `completion_mask` (1: the loss counts the token); and
        `ref_chosen_logps`, `ref_rejected_logps` (B,) where they were computed before."""
        sequences = [
            (example[f"{half}_ids"], example[f"{half}_mask"])
            for half in ("chosen", "rejected")
            for example in examples
        ]
        batch = _padded(sequences, self.pad_id, self.multiple)
        return batch | _numbers(examples, ("ref_chosen_logps", "ref_rejected_logps"))


@dataclass(frozen=True, slots=True)
class KtoBatches:
    """The collator of single answers: the matched sequences and, for the KL term, the mismatched."""

    pad_id: int
    multiple: int | None = None

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        """(B, T) `input_ids`, `attention_mask`, `completion_mask`, the same with `KL_`, `label` (B,), and
        `ref_logps`, `ref_KL_logps` (B,) where they were computed before."""
        batch: dict[str, torch.Tensor] = {}
        for prefix in ("", "KL_"):
            if f"{prefix}completion_ids" not in examples[0]:
                continue
            sequences = [
                (
                    [*example["prompt_ids"], *example[f"{prefix}completion_ids"]],
                    [0] * len(example["prompt_ids"]) + list(example[f"{prefix}completion_mask"]),
                )
                for example in examples
            ]
            padded = _padded(sequences, self.pad_id, self.multiple)
            batch |= {f"{prefix}{name}": tensor for name, tensor in padded.items()}
        return batch | _numbers(examples, ("ref_logps", "ref_KL_logps", "label"))


def _padded(
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]], pad_id: int, multiple: int | None
) -> dict[str, torch.Tensor]:
    ids = [torch.tensor(list(tokens), dtype=torch.long) for tokens, _ in sequences]
    masks = [torch.tensor(list(mask), dtype=torch.long) for _, mask in sequences]
    parts = {"input_ids": ids, "attention_mask": [torch.ones_like(i) for i in ids], "completion_mask": masks}
    return {
        name: pad(
            tensors,
            padding_value=pad_id if name == "input_ids" else 0,
            padding_side="right",
            pad_to_multiple_of=multiple,
        )
        for name, tensors in parts.items()
    }


def _numbers(examples: Sequence[Example], names: Sequence[str]) -> dict[str, torch.Tensor]:
    return {
        name: torch.tensor([example[name] for example in examples]) for name in names if name in examples[0]
    }
