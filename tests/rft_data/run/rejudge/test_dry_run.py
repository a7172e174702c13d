"""A dry run says what the operators do, agrees with what the run stored, and writes nothing."""

import json
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.cli.rejudge_text import dry_run_text
from rft_data.core.errors import IntegrityError
from rft_data.reading.whole_groups import whole_groups
from rft_data.recipe import load_recipe
from rft_data.run.curate import curate
from rft_data.run.rejudge import StoredVerdicts, dry_run
from tests.gsm8k import FOLDER
from tests.rft_data.conftest import make_experience
from tests.rft_data.run.rejudge.explored import LENIENT, STRICT, explore, pipeline

ROOT = Path(__file__).parents[4]
REWARDS = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [None, 1.0], [0.5, 0.25]]


@pytest.mark.slow
def test_the_report_counts_by_operator_and_by_row(buffer: Buffer) -> None:
    explore(buffer, REWARDS)
    found = dry_run(buffer, pipeline(STRICT), whole_groups(buffer), groups_per_batch=2, shown=4)
    assert (found.groups, found.first.rows, found.first.kept, found.first.dropped) == (5, 10, 4, 6)
    ranged, variance, advantage = found.first.operators
    assert (ranged.rows_in, ranged.rows_out, ranged.dropped) == (10, 9, 1)
    assert (variance.rows_in, variance.rows_out, variance.dropped) == (9, 4, 5)
    assert (advantage.rows_in, advantage.dropped, advantage.keep_rate) == (4, 0, 1.0)
    [reason] = variance.reasons
    assert (reason.kind, reason.rows) == ("group reward std # is not above #", 5)
    assert reason.example == "group reward std 0 is not above 1e-06"
    assert [row["verdict"] for row in found.rows] == ["kept", "kept", "dropped", "dropped"]
    assert found.rows[0]["advantage"] == pytest.approx([0.7070068])
    assert found.rows[2]["dropped_by"] == "reward_variance_filter"


@pytest.mark.slow
def test_a_dry_run_agrees_with_what_the_run_stored(buffer: Buffer) -> None:
    explore(buffer, REWARDS)
    stored = StoredVerdicts(buffer)
    found = dry_run(
        buffer, pipeline(STRICT), whole_groups(buffer), groups_per_batch=3, against=stored, shown=5
    )
    difference = found.difference
    assert difference is not None
    assert (difference.rows, difference.both, difference.unjudged) == (10, 4, 0)
    assert (difference.only_first, difference.only_second, difference.advantage_changed) == (0, 0, 0)
    assert difference.examples == []
    assert found.second is None


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 32])
def test_group_operators_judge_alike_whatever_the_batch(buffer: Buffer, size: int) -> None:
    explore(buffer, REWARDS)
    found = dry_run(buffer, pipeline(STRICT), whole_groups(buffer), groups_per_batch=size)
    assert found.first.kept == 4
    assert found.rows == ()


@pytest.mark.slow
def test_two_recipes_differ_in_rows_and_advantages(buffer: Buffer) -> None:
    explore(buffer, REWARDS)
    unscaled = [*STRICT[:-2], {"grpo_advantage_mapper": {"scale": "none"}}]
    found = dry_run(
        buffer,
        pipeline(STRICT),
        whole_groups(buffer),
        groups_per_batch=2,
        against=pipeline(unscaled),
        shown=2,
    )
    difference = found.difference
    assert difference is not None
    assert found.second is not None
    assert (found.second.kept, difference.only_first, difference.only_second) == (9, 0, 5)
    assert (difference.advantage_changed, difference.both) == (4, 4)
    # groups (1, 0) and (0.5, 0.25): (r - mean) / (std + eps) against r - mean
    assert difference.advantage_max == pytest.approx(0.125 / (0.1767767 + 1e-4) - 0.125, rel=1e-4)
    assert [example.second for example in difference.examples] == ["kept", "kept"]
    assert difference.examples[0].first.startswith("dropped by reward_variance_filter: group reward std 0")


@pytest.mark.slow
def test_rows_nobody_judged_are_counted_apart(buffer: Buffer) -> None:
    explore(buffer, REWARDS[:1])
    later = StoredVerdicts(buffer)
    explore(buffer, REWARDS[:1], run_id="later")
    found = dry_run(buffer, pipeline(STRICT), whole_groups(buffer), groups_per_batch=2, against=later)
    assert found.difference is not None
    assert (found.difference.unjudged, found.difference.both, found.difference.only_first) == (2, 2, 0)


def test_no_groups_is_an_empty_report(buffer: Buffer) -> None:
    found = dry_run(buffer, pipeline(STRICT), whole_groups(buffer), groups_per_batch=2, against=pipeline([]))
    assert (found.groups, found.first.rows) == (0, 0)
    assert found.first.operators == ()
    assert "0 rows of 0 groups" in dry_run_text(found, ("a.yaml", "b.yaml"))


@pytest.mark.slow
def test_nothing_is_written(buffer: Buffer, tmp_path: Path) -> None:
    explore(buffer, REWARDS)
    before = buffer.counts()
    with Buffer(tmp_path / "buffer", read_only=True) as reader:
        dry_run(reader, pipeline(LENIENT, reader), whole_groups(reader), groups_per_batch=2)
        assert reader.counts() == before


@pytest.mark.slow
def test_the_report_is_json_and_text(buffer: Buffer) -> None:
    explore(buffer, REWARDS)
    found = dry_run(
        buffer, pipeline(STRICT), whole_groups(buffer), groups_per_batch=2, against=pipeline(LENIENT), shown=3
    )
    value = json.loads(json.dumps(found.as_json()))
    assert value["first"]["operators"][0]["keep_rate"] == 0.9
    assert value["difference"]["only_second"] == 5
    assert len(value["rows"]) == 3
    text = dry_run_text(found, ("strict.yaml", "lenient.yaml"))
    assert "kept by lenient.yaml only: 5" in text
    assert "group reward std # is not above #" in text


def test_control_characters_of_a_reason_do_not_reach_the_terminal(buffer: Buffer) -> None:
    from rft_data.run.rejudge import Difference, DryRun, Example, Replay

    wild = Example("e1", "kept", "dropped by x: \x1b[2J")
    replay = Replay("p", 1, 1, 0, 0, ())
    found = DryRun(1, replay, None, Difference(rows=1, examples=[wild]), ())
    assert "\x1b" not in dry_run_text(found, ("a", "b"))


def test_an_id_with_control_characters_does_not_reach_the_terminal(buffer: Buffer) -> None:
    buffer.append([make_experience(0, experience_id="evil\x1b[2J\x1b]0;x\x07", group_id="g")])
    two = {"against": pipeline([]), "shown": 5}
    found = dry_run(buffer, pipeline(STRICT), whole_groups(buffer), groups_per_batch=2, **two)
    text = dry_run_text(found, ("a", "b"))
    assert text.count("evil\\x1b[2J\\x1b]0;x\\x07") == 2, "as a difference, and as a row"
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.slow
def test_a_row_that_is_gone_stops_it(buffer: Buffer) -> None:
    explore(buffer, REWARDS)
    groups = whole_groups(buffer)
    beyond = type(groups)(groups.names, groups.seqs + 100, groups.ends)
    with pytest.raises(IntegrityError, match="no experience with row number"):
        dry_run(buffer, pipeline(STRICT), beyond, groups_per_batch=2)


@pytest.mark.slow
def test_real_rollouts_are_replayed_over_text_operators(tmp_path: Path) -> None:
    for name in ("test.jsonl", "example_model_solutions.jsonl"):
        lines = (FOLDER / name).read_text().splitlines(keepends=True)[:40]
        (tmp_path / name).write_text("".join(lines))
    overrides = [
        f"buffer.uri={tmp_path}/buffer",
        f"tasks.0.source.path={tmp_path}/test.jsonl",
        f"rollouts.0.source.path={tmp_path}/example_model_solutions.jsonl",
    ]
    curate(load_recipe(ROOT / "recipes" / "gsm8k_data.yaml", overrides))
    short = [{"text_length_filter": {"max_len": 200}}, *STRICT]
    with Buffer(tmp_path / "buffer", read_only=True) as reader:
        texts = reader.read("experiences", ["completion_text"]).column(0).to_pylist()
        found = dry_run(
            reader,
            pipeline(STRICT),
            whole_groups(reader),
            groups_per_batch=8,
            against=pipeline(short),
            shown=1000,
        )
    assert found.first.rows == len(texts) > 0
    assert found.second is not None
    length = found.second.operators[0]
    assert length.rows_in - length.rows_out == sum(not 10 <= len(text) <= 200 for text in texts)
    assert sum(row["verdict"] == "kept" for row in found.rows) == found.first.kept
