"""What a finished run shows, on hand-made numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.run.report import taskset_groups, token_counts
from rft_data.run.summary_text import next_steps, table

SUMMARY: dict[str, Any] = {
    "heldout_accuracy": {"start": 0.25, "final": 0.5},
    "by_difficulty": {},
    "pass_at_k": {},
    "groups": {"admitted": 9, "trained": 8, "dropped": 1, "open": 0},
    "groups_by_taskset": {"hard": 2, "sums": 7},
    "buffer_rows": {"experiences": 36},
    "seconds": {"rl": 61.0},
    "tokens": {"sampled": 720, "trained": 640},
    "pictures": [],
}


def test_the_table_has_accuracies_groups_rows_tokens_and_times() -> None:
    lines = {line[:10].strip(): line for line in table(SUMMARY).splitlines() if line}
    assert lines["all"].split()[1:] == ["25.0%", "50.0%"]
    assert lines["groups"] == "groups    admitted 9, trained 8, dropped 1"
    assert lines["buffer"] == "buffer    experiences 36"
    assert lines["tokens"] == "tokens    sampled 720, trained 640"
    assert lines["groups of"] == "groups of hard 2, sums 7"
    assert lines["wall time"] == "wall time rl 61 s"


def test_sampled_groups_are_those_of_the_run_that_arrived(tmp_path: Path) -> None:
    sampled = [("run", "sums", "arrived"), ("run", "hard", "arrived"), ("run", "sums", "arrived")]
    others = [("run", "hard", "cancelled"), ("run", "sums", "failed"), ("other", "sums", "arrived")]
    with Buffer(tmp_path) as buffer:
        buffer.add_rows("groups", [_group(n, *one) for n, one in enumerate(sampled + others)])
        assert taskset_groups(buffer, "run") == {"hard": 1, "sums": 2}
        assert taskset_groups(buffer, "new") == {}


def _group(number: int, run_id: str, taskset: str, outcome: str) -> dict[str, Any]:
    named = {"group_id": f"g{number}", "run_id": run_id, "taskset": taskset, "task_id": "t"}
    versions = {"version": 0, "version_min": 0}
    return {
        **named, **versions, "ordinal": number, "round": 0, "attempt": 0, "outcome": outcome,
        "rewards": [], "seqs": [], "dropped_by": "a_filter" if number else "", "error": "",
    }  # fmt: skip


def test_groups_of_a_single_taskset_are_told_once() -> None:
    assert "groups of" not in table({**SUMMARY, "groups_by_taskset": {"sums": 9}})


def test_a_summary_of_an_older_release_has_no_tokens() -> None:
    older = {key: value for key, value in SUMMARY.items() if key != "tokens"}
    assert "tokens" not in table(older)


def test_a_run_that_measures_models_numbers_those_with_long_names() -> None:
    models = ["runs/shop/weights/v00000002", "runs/shop/weights/v00000005"]
    measured = {
        "heldout_accuracy": dict(zip(models, (0.25, 0.5), strict=True)),
        "by_difficulty": {models[1]: {"sums/1": 1.0}},
        "pass_at_k": {models[0]: {"4": 0.75}},
        "buffer_rows": {"experiences": 36, "annotations": 0},
    }
    lines = table(measured).splitlines()
    assert lines[:3] == [f"model 1: {models[0]}", f"model 2: {models[1]}", ""]
    assert [line.split() for line in lines[3:7]] == [
        ["held-out", "accuracy", "1", "2"],
        ["sums/1", "0.0%", "100.0%"],
        ["all", "25.0%", "50.0%"],
        ["pass@k", "1:", "4:", "75.0%"],
    ]
    assert lines[-1] == "buffer    experiences 36"


def test_a_run_of_offline_stages_tells_what_each_did() -> None:
    told = {"examples": 12, "left_out": {"too long": 2}, "metrics": {"steps": 3.0}}
    losses = {"loss_first": 6.1481, "loss_last": 2.6587}
    stages = {"0-sft": {**told, "metrics": {**told["metrics"], **losses}}, "1-dpo": told}
    found = table({"stages": stages, "preferences": {"1-dpo": {"accuracy": 0.75, "pairs": 8, "margin": 0.1}}})
    assert found.splitlines()[:3] == [
        "stage 0-sft: 12 examples, 3 steps, loss 6.148 -> 2.659; 2 left out: too long",
        "stage 1-dpo: 12 examples, 3 steps; 2 left out: too long",
        "preferences, 1-dpo: 75.0% of 8 pairs told right, margin 0.100",
    ]


def test_further_commands_are_those_that_show_something() -> None:
    shown = next_steps("rft", "", "runs/r", "runs/r/buffer", {"experiences": 3, "annotations": 0})
    assert "--table experiences" in shown
    assert "--table annotations" not in shown
    assert "--fresh" not in shown, "rft resume takes none"
    assert "rft run r.yaml --fresh" in next_steps("rft", "run r.yaml", "runs/r", "b", {})


def test_tokens_of_a_step_taken_again_are_sampled_twice_and_trained_once() -> None:
    rows = [
        ("r", "explorer-0", 0, "tokens", 10.0),
        ("r", "explorer-1", 0, "tokens", 5.0),
        ("r", "trainer", 0, "tokens", 12.0),
        ("r", "trainer", 1, "tokens", 7.0),
        ("r", "trainer", 1, "rows", 99.0),
        ("other", "trainer", 2, "tokens", 1000.0),
        ("r", "explorer-0", 1, "tokens", 4.0),
        ("r", "trainer", 1, "tokens", 8.0),
    ]
    names = ("run_id", "role", "step", "key", "value")
    metrics = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    assert token_counts(metrics, "r") == {"sampled": 19, "trained": 20}
    assert token_counts(metrics, "nobody") == {"sampled": 0, "trained": 0}
