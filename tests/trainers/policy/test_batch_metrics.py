"""Figures of a lease on hand-made rows."""

from __future__ import annotations

import statistics

import pyarrow as pa
import pytest

from trainers.policy.batch_metrics import batch_metrics


def lease_table(rewards: list[float | None], groups: str, lengths: list[int], **more: object) -> pa.Table:
    """Rows with a prompt of two tokens; `groups`: a letter for each row."""
    columns = {
        "group_id": list(groups),
        "reward": pa.array(rewards, pa.float32()),
        "token_ids": [[0] * (2 + length) for length in lengths],
        "prompt_length": [2] * len(lengths),
        **more,
    }
    return pa.table(columns)


def test_rewards_and_lengths_have_trls_names_and_definitions() -> None:
    found = batch_metrics(lease_table([1.0, 0.0, 0.5, 0.5, None], "aabbc", [3, 5, 1, 1, 9]))
    assert found["reward"] == 0.5
    assert found["reward_std"] == pytest.approx(statistics.stdev([1.0, 0.0, 0.5, 0.5]))
    assert found["frac_reward_zero_std"] == 0.5  # two of the four rows with a reward
    lengths = {name: found[f"completions/{name}_length"] for name in ("mean", "min", "max")}
    assert lengths == {"mean": 3.8, "min": 1.0, "max": 9.0}
    assert found["rows"] == 5.0
    assert not {"raw_reward", "shaped_reward", "masked"} & found.keys()


def test_a_lease_without_rewards_has_no_figures_of_them() -> None:
    found = batch_metrics(lease_table([None], "a", [3]))
    assert not {"reward", "reward_std", "frac_reward_zero_std"} & found.keys()


def test_shaped_rewards_are_what_counts_and_both_are_told() -> None:
    table = lease_table([1.0, 0.0], "aa", [1, 1], shaped_reward=pa.array([0.25, None], pa.float32()))
    found = batch_metrics(table)
    assert (found["reward"], found["raw_reward"], found["shaped_reward"]) == (0.125, 0.5, 0.25)
    assert found["frac_reward_zero_std"] == 0.0
