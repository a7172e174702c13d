"""Rows dealt by length: nothing lost, little padded, and the gradient of a shuffled or undivided batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from trl import GRPOConfig

from rft_data.core.protocols import LeasedBatch
from trainers.models.options import padded_rows
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.micro_batches import (
    MICRO_BATCH,
    RANK,
    Dealing,
    allowed_dealing,
    deal,
    rank_micro_batches,
)
from trainers.policy.plan import GrpoPlan, Limits

Rows = Callable[..., pa.Table]
Leased = Callable[[pa.Table, int], LeasedBatch]

BY_AREA, BY_ROWS, SHUFFLED = Dealing(True, False), Dealing(True, True), Dealing(False, True)


def lease(prompts: list[int], completions: list[int]) -> dict[str, torch.Tensor]:
    """A collated batch of these lengths; the ids name row and column."""
    rows, width, longest = len(prompts), max(1, *completions), max(prompts)
    p, c = torch.tensor(prompts)[:, None], torch.tensor(completions)[:, None]
    ids = torch.arange(rows)[:, None] * 1000
    return {
        "prompt_ids": ids + torch.arange(longest),
        "prompt_mask": (torch.arange(longest) >= longest - p).long(),
        "completion_ids": ids + torch.arange(width),
        "completion_mask": (torch.arange(width) < c).long(),
        "advantages": torch.arange(rows).float(),
        "num_items_in_batch": torch.tensor(sum(completions)),
    }


lengths = st.integers(0, 300)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    ranks=st.integers(1, 4),
    micro_batches=st.integers(1, 5),
    slots=st.integers(1, 4),
    dealing=st.sampled_from([BY_AREA, BY_ROWS, SHUFFLED]),
    data=st.data(),
)
def test_each_row_is_dealt_once_and_ranks_keep_step(
    ranks: int, micro_batches: int, slots: int, dealing: Dealing, data: st.DataObject
) -> None:
    rows = ranks * micro_batches * slots
    prompts = data.draw(st.lists(st.integers(1, 40), min_size=rows, max_size=rows))
    completions = data.draw(st.lists(lengths, min_size=rows, max_size=rows))
    batch = lease(prompts, completions)
    dealt = deal(batch, dealing, micro_batches=micro_batches, ranks=ranks, seed=3)
    parts = [rank_micro_batches({**batch, **dealt}, rank) for rank in range(ranks)]
    sizes = [[len(part["advantages"]) for part in of_rank] for of_rank in parts]
    assert all(of_rank == sizes[0] for of_rank in sizes)
    assert len(sizes[0]) == micro_batches
    assert min(sizes[0]) >= 1
    if dealing.equal_rows:
        assert set(sizes[0]) == {slots}
    seen = torch.cat([part["advantages"] for of_rank in parts for part in of_rank])
    assert sorted(seen.tolist()) == list(range(rows))
    for part in (part for of_rank in parts for part in of_rank):
        for row, number in enumerate(part["advantages"].long().tolist()):
            kept = part["completion_ids"][row][part["completion_mask"][row] == 1]
            assert kept.tolist() == [1000 * number + i for i in range(completions[number])]
            assert int(part["prompt_mask"][row].sum()) == prompts[number]
        assert part["num_items_in_batch"] == batch["num_items_in_batch"]


def _areas(batch: dict[str, torch.Tensor], dealing: Dealing, micro_batches: int) -> list[int]:
    dealt = {**batch, **deal(batch, dealing, micro_batches=micro_batches, ranks=1, seed=0)}
    parts = rank_micro_batches(dealt, 0)
    return [part["prompt_ids"].numel() + part["completion_ids"].numel() for part in parts]


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(lengths, min_size=8, max_size=8), st.integers(1, 4))
def test_largest_micro_batch_is_no_larger_than_that_of_equal_parts(
    completions: list[int], micro_batches: int
) -> None:
    micro_batches = 2 ** (micro_batches - 1)
    batch = lease([4] * 8, completions)
    assert max(_areas(batch, BY_AREA, micro_batches)) <= max(_areas(batch, BY_ROWS, micro_batches))


def test_one_long_row_is_alone_and_short_ones_are_together() -> None:
    batch = lease([1] * 8, [400, 9, 8, 10, 9, 8, 10, 9])
    dealt = deal(batch, BY_AREA, micro_batches=2, ranks=1, seed=0)
    assert dealt[MICRO_BATCH].tolist() == [0, 1, 1, 1, 1, 1, 1, 1]
    assert dealt[RANK].tolist() == [0] * 8


def test_masked_and_padding_rows_cost_one_column() -> None:
    batch = lease([5, 5, 1, 1], [30, 28, 0, 0])
    parts = rank_micro_batches({**batch, **deal(batch, BY_ROWS, micro_batches=2, ranks=1, seed=0)}, 0)
    assert [part["completion_ids"].shape for part in parts] == [(2, 30), (2, 1)]
    assert parts[1]["prompt_ids"].shape == (2, 1)


@pytest.mark.parametrize(
    ("options", "own", "expected"),
    [
        ({"loss_type": "dapo"}, False, BY_AREA),
        ({"loss_type": "grpo"}, False, BY_ROWS),
        ({"loss_type": "bnpo"}, False, SHUFFLED),
        ({"loss_type": "dapo", "entropy_coef": 0.1}, False, SHUFFLED),
        ({"loss_type": "dapo", "top_entropy_quantile": 0.2}, False, SHUFFLED),
        ({"loss_type": "grpo", "entropy_coef": 0.1}, True, BY_AREA),
    ],
)
def test_dealing_is_what_the_loss_allows(
    tmp_path: Path, options: dict[str, Any], own: bool, expected: Dealing
) -> None:
    config = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, num_generations=2, **options)
    assert allowed_dealing(config, own_loss=own) == expected


def test_rows_are_rounded_up_to_what_can_be_dealt() -> None:
    assert padded_rows(13, micro_batches=4, ranks=1) == 13
    assert padded_rows(13, micro_batches=2, ranks=2) == 16
    assert padded_rows(16, micro_batches=2, ranks=2) == 16


LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dapo": ({"loss_type": "dapo", "beta": 0.1}, {}),
    "grpo": ({"loss_type": "grpo"}, {}),
    "own": ({}, {"loss": {"use": "ppo_clip"}, "kl": {"coef": 0.1}}),
    "own-row-mean": ({}, {"loss": {"use": "tests.trainers.policy.row_mean_loss:LOSS"}}),
}


def _update(
    model_path: Path, out: Path, batch: LeasedBatch, accumulate: int, name: str
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    trl, objective = LOSSES[name]
    options = {
        **trl,
        "learning_rate": 0.5,
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "gradient_accumulation_steps": accumulate,
    }
    with closing(
        GrpoTrainer(
            GrpoPlan(model_path, out, 1, 16, options, 0, objective=objective, limits=Limits(threads=1))
        )
    ) as trainer:
        metrics = trainer.step(batch)
        (out / "w").mkdir(parents=True)
        trainer.save_weights(out / "w")
    before = load_file(model_path / "model.safetensors")
    after = load_file(out / "w" / "model.safetensors")
    return {name: after[name] - before[name] for name in after}, metrics


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_dealt_micro_batches_give_the_gradient_of_the_undivided_batch(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased, name: str
) -> None:
    batch = leased(rows_table(0, 16, per_token=True), 0)
    want, of_one = _update(model_path, tmp_path / "1", batch, 1, name)
    got, of_four = _update(model_path, tmp_path / "4", batch, 4, name)
    off = torch.sqrt(sum((got[n] - want[n]).double().square().sum() for n in want))
    size = torch.sqrt(sum(want[n].double().square().sum() for n in want))
    assert off / size <= 1e-6
    assert of_four["loss"] == pytest.approx(of_one["loss"], rel=1e-5, abs=1e-7)
