"""Lineage tells the whole way of a row, from its task to the weights that hold it, and back."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.cli.lineage_text import group_text, lineage_text
from rft_data.core.errors import RecipeError
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import Feedback, PreferencePair, Task, now
from rft_data.core.schema import ANNOTATIONS
from rft_data.core.text import shown
from rft_data.reading.group_view import group_view
from rft_data.reading.lineage import lineage, trained_on
from rft_data.sampler.ledger import Ledger
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.conftest import make_experience

TASK = Task("arith", ({"role": "user", "content": "1+1="},), "2")


def annotation(seq: int, experience_id: str, verdict: str = "kept", advantage: float | None = 0.5) -> dict:
    return {
        "seq": seq,
        "experience_id": experience_id,
        "pipeline_hash": "p",
        "verdict": verdict,
        "dropped_by": "" if verdict == "kept" else "too_long",
        "reason": "" if verdict == "kept" else "900 tokens",
        "advantage": None if advantage is None else [advantage],
        "shaped_reward": None,
        "masked": None,
        "stats": "{}",
        "created_at": now(),
    }


@pytest.fixture
def story(tmp_path: Path):
    """Three groups of two; step 0 trained and in a checkpoint, step 1 released, group 2 retired."""
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.add_tasks([TASK])
        versions = VersionRegistry(buffer, "run", tmp_path / "weights")
        save = lambda folder: (folder / "w").write_text("x")  # noqa: E731
        versions.publish(0, save)
        rows = [
            make_experience(
                n,
                task_id=TASK.task_id,
                group_id=f"g{n // 2}",
                version_min=0,
                version_max=0,
                version_spans=((0, 2, 4),),
            )
            for n in range(6)
        ]
        buffer.append(rows)
        judged = [annotation(n, rows[n].experience_id, "quarantined", None) for n in (0,)]
        judged += [annotation(n, row.experience_id) for n, row in enumerate(rows)]
        buffer.annotate(pa.Table.from_pylist(judged, schema=ANNOTATIONS))
        ledger = Ledger(buffer, "run", 0)
        ledger.attach("trainer")
        groups = [
            GroupResult(Ticket(f"g{n}", n, 0), TASK.key, (1.0, 1.0), "arrived", 0, (2 * n, 2 * n + 1))
            for n in range(3)
        ]
        ledger.grant("trainer", 0, 0, groups[:1])
        versions.issue(1)
        versions.publish(2, save)
        ledger.consume("trainer", 1)
        ledger.release(ledger.grant("trainer", 1, 1, groups[1:2]), "the machine went away")
        ledger.retire("trainer", ["g2"], "stale")
        ledger.attach("other")
        ledger.grant("other", 0, 0, groups[:1])
        buffer.add_feedback([Feedback(rows[0].experience_id, "ann", "score", 0.5, "good\x1b[31m")])
        halves = {
            "chosen_experience_id": rows[0].experience_id,
            "rejected_experience_id": rows[1].experience_id,
        }
        answers = ({"role": "assistant", "content": "2"},), ({"role": "assistant", "content": "3"},)
        pair = PreferencePair("mined", "arith", TASK.task_id, *answers, **halves)
        buffer.add_preferences([pair])
        yield buffer, rows, pair


@pytest.mark.slow
def test_lineage_of_a_trained_row_reaches_the_weights(story):
    buffer, rows, pair = story
    line = lineage(buffer, rows[0].experience_id)
    assert line == lineage(buffer, 0)
    assert line.task == TASK
    assert [(w.version, w.path) for w in line.sampled_by] == [(0, "v00000000")]
    assert [(j.verdict, j.advantage) for j in line.judgements] == [("kept", (0.5,))]
    trained, held = line.uses
    assert (trained.consumer, trained.step, trained.epoch, trained.state) == ("trainer", 0, 1, "trained")
    assert trained.checkpoint_step == 1
    assert trained.weights is not None
    assert (trained.weights.version, trained.weights.step, trained.weights.path) == (2, 2, "v00000002")
    assert (held.consumer, held.state, held.weights) == ("other", "granted", None)
    assert [said["value"] for said in line.feedback] == [0.5]
    assert line.preferences == (pair.preference_id,)
    assert line.retired == ()


@pytest.mark.slow
def test_lineage_of_released_and_retired_rows(story):
    buffer, _, _ = story
    released = lineage(buffer, 2).uses
    assert [(use.state, use.reason, use.step) for use in released] == [
        ("released", "the machine went away", 1)
    ]
    stale = lineage(buffer, 5)
    assert stale.uses == ()
    assert [(who.consumer, who.reason) for who in stale.retired] == [("trainer", "stale")]


@pytest.mark.slow
def test_a_row_leased_again_for_the_same_step_has_both_uses(story):
    buffer, _, _ = story
    ledger = Ledger(buffer, "run", 1)
    ledger.grant(
        "trainer", 1, 1, [GroupResult(Ticket("g1", 1, 0), TASK.key, (1.0, 1.0), "arrived", 0, (2, 3))]
    )
    ledger.consume("trainer", 2)
    assert [use.state for use in lineage(buffer, 2).uses] == ["released", "trained"]


@pytest.mark.slow
def test_trained_on_gives_the_rows_of_a_step_in_order(story):
    buffer, rows, _ = story
    found = trained_on(buffer, "run", 0, "trainer")
    assert found["experience_id"].to_pylist() == [row.experience_id for row in rows[:2]]
    with pytest.raises(RecipeError, match="consumers other, trainer have a lease"):
        trained_on(buffer, "run", 0)
    with pytest.raises(RecipeError, match="no consumer has a lease for step 1"):
        trained_on(buffer, "run", 1)


@pytest.mark.slow
def test_lineage_of_an_unknown_row_is_refused(story):
    buffer, _, _ = story
    with pytest.raises(RecipeError, match="no experience with id 'nope'"):
        lineage(buffer, "nope")
    with pytest.raises(RecipeError, match="row number 99"):
        lineage(buffer, 99)


@pytest.mark.slow
def test_group_view_puts_members_side_by_side(story):
    buffer, rows, _ = story
    view = group_view(buffer, "g0")
    assert [member.seq for member in view.members] == [0, 1]
    assert [member.reward for member in view.members] == [1.0, 1.0]
    assert [member.completion_tokens for member in view.members] == [2, 2]
    assert view.members[0].judgements[0].verdict == "kept"
    assert view.task == TASK
    assert rows[0].experience_id == view.members[0].experience_id
    with pytest.raises(RecipeError, match="no group 'g9'"):
        group_view(buffer, "g9")


@pytest.mark.slow
def test_texts_are_one_printable_line_per_fact(story):
    buffer, _, _ = story
    text = lineage_text(lineage(buffer, 0))
    assert (
        "step 0 by trainer of run run (epoch 1): trained, checkpoint 1 -> version 2 (step 2, v00000002)"
        in text
    )
    assert "\x1b" not in text
    assert "never by trainer of run run: stale" in lineage_text(lineage(buffer, 5))
    assert "kept, advantage +0.5" in group_text(group_view(buffer, "g0"))
    assert shown("a\x1b[0m\u202eb" * 50).isprintable()
    assert len(shown("\n" * 500)) == 100


@pytest.mark.slow
def test_lineage_and_group_are_plain_json(story):
    buffer, _, _ = story
    assert json.loads(json.dumps(lineage(buffer, 0).as_json(), default=str))["uses"][0]["step"] == 0
    assert json.loads(json.dumps(group_view(buffer, "g0").as_json(), default=str))["group_id"] == "g0"


@pytest.mark.slow
def test_lineage_of_an_imported_row_without_a_task_or_versions(buffer):
    bare = {
        "token_ids": None,
        "action_mask": None,
        "logprobs": None,
        "version_min": None,
        "version_max": None,
    }
    buffer.append(
        [make_experience(0, source="import", **bare, version_spans=(), prompt_length=0, reward=None)]
    )
    line = lineage(buffer, 0)
    assert (line.task, line.sampled_by, line.uses) == (None, (), ())
    text = lineage_text(line)
    assert "(not stored)" in text
    assert "not known yet" in text
    assert group_view(buffer, "run/g0").members[0].completion_tokens is None


@pytest.mark.slow
def test_ids_with_control_characters_do_not_reach_the_terminal(buffer: Buffer) -> None:
    wild = "w\x1b[2J\x9b"
    row = make_experience(0, experience_id=wild, group_id=wild, run_id=wild, taskset=wild, task_id=wild)
    buffer.append([row])
    buffer.annotate(pa.Table.from_pylist([annotation(0, wild)], schema=ANNOTATIONS))
    buffer.add_feedback([Feedback(wild, wild, wild, 1.0, wild)])
    ledger = Ledger(buffer, wild, 0)
    ledger.attach(wild)
    group = GroupResult(Ticket(wild, 0, 0), TASK.key, (1.0,), "arrived", 0, (0,))
    ledger.release(ledger.grant(wild, 0, 0, [group]), wild)
    ledger.retire(wild, [wild], wild)
    texts = lineage_text(lineage(buffer, wild)), group_text(group_view(buffer, wild))
    for text in texts:
        assert "w\\x1b[2J\\x9b" in text
        assert all(line.isprintable() for line in text.split("\n"))
