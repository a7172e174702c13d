"""What a finished run shows, on hand-made numbers."""

from __future__ import annotations

import pyarrow as pa

from rft_data.run.report import OnlineSummary, table, token_counts

SUMMARY: OnlineSummary = {
    "heldout_accuracy": {"start": 0.25, "final": 0.5},
    "by_difficulty": {},
    "pass_at_k": {},
    "groups": {"admitted": 9, "trained": 8, "dropped": 1, "open": 0},
    "buffer_rows": {"experiences": 36},
    "seconds": {"rl": 61.0},
    "tokens": {"sampled": 720, "trained": 640},
    "pictures": [],
}


def test_the_table_has_accuracies_groups_rows_tokens_and_times() -> None:
    lines = {line.split()[0]: line for line in table(SUMMARY).splitlines() if line}
    assert lines["all"].split()[1:] == ["25.0%", "50.0%"]
    assert lines["groups"] == "groups    admitted 9, trained 8, dropped 1"
    assert lines["buffer"] == "buffer    experiences 36"
    assert lines["tokens"] == "tokens    sampled 720, trained 640"
    assert lines["wall"] == "wall time rl 61 s"


def test_a_summary_of_an_older_release_has_no_tokens() -> None:
    older = {key: value for key, value in SUMMARY.items() if key != "tokens"}
    assert "tokens" not in table(older)  # type: ignore[arg-type]


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
