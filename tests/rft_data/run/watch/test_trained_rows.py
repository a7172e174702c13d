"""Figures of stored rows, on hand-made ones."""

from __future__ import annotations

import statistics

import pytest

from rft_data.buffer import Buffer
from rft_data.run.watch.trained_rows import trained_facts
from tests.rft_data.conftest import make_experience

ROWS = [
    {"finish_reason": "stop", "reward_parts": {"exact": 1.0, "short": 0.5}},
    {"finish_reason": "length", "reward_parts": {"exact": 0.0}},
    {"finish_reason": "abort", "reward_parts": {}},
    {
        "finish_reason": "stop",
        "reward_parts": {"exact": 0.25},
        "token_ids": [5, 6, 7, 8, 9],
        "action_mask": [0, 0, 1, 1, 1],
        "logprobs": [0.0, 0.0, -0.25, -1.5, -0.5],
        "version_spans": ((3, 2, 5),),
    },
]


@pytest.mark.slow
def test_rows_that_are_not_tokenised_have_rewards_and_no_lengths(buffer: Buffer) -> None:
    expert = make_experience(
        9,
        source="expert",
        token_ids=None,
        action_mask=None,
        logprobs=None,
        version_spans=(),
        version_min=None,
        version_max=None,
        reward_parts={"exact": 1.0},
    )
    stored = buffer.append([make_experience(0, reward_parts={"exact": 0.0}), expert])
    assert trained_facts(buffer.take(stored.seqs)) == {
        "completions/clipped_ratio": 0.0,
        **{f"completions/{what}_terminated_length": 2.0 for what in ("mean", "min", "max")},
        "rewards/exact/mean": 0.5,
        "rewards/exact/std": pytest.approx(statistics.stdev([0.0, 1.0])),
    }
    assert trained_facts(buffer.take(stored.seqs[1:])) == {"rewards/exact/mean": 1.0}


def test_ends_of_completions_and_components_are_told_as_trl_does(buffer: Buffer) -> None:
    stored = buffer.append([make_experience(number, **row) for number, row in enumerate(ROWS)])
    found = trained_facts(buffer.take(stored.seqs))
    assert found == {
        "completions/clipped_ratio": 0.5,
        "completions/mean_terminated_length": 2.5,
        "completions/min_terminated_length": 2.0,
        "completions/max_terminated_length": 3.0,
        "rewards/exact/mean": pytest.approx(1.25 / 3),
        "rewards/exact/std": pytest.approx(statistics.stdev([1.0, 0.0, 0.25])),
        "rewards/short/mean": 0.5,
    }


def test_where_no_completion_ended_by_itself_the_lengths_are_zero(buffer: Buffer) -> None:
    stored = buffer.append([make_experience(0, finish_reason="length")])
    found = trained_facts(buffer.take(stored.seqs))
    assert found["completions/clipped_ratio"] == 1.0
    assert found["completions/max_terminated_length"] == 0.0


def test_no_rows_have_no_figures(buffer: Buffer) -> None:
    assert trained_facts(buffer.take([])) == {}
