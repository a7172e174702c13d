"""A view is the same rows for ever; a branch is those rows, whole, in a buffer of their own."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError, RecipeError
from rft_data.core.filters import Compare, In
from rft_data.core.groups import GroupResult, Played, Ticket
from rft_data.core.rows import Feedback, PreferencePair, Task
from rft_data.core.schema import ANNOTATIONS
from rft_data.loop.closing import group_row
from rft_data.reading.branch import branch
from rft_data.reading.tags import View, tag, tags, view
from tests.rft_data.conftest import make_experience
from tests.rft_data.reading.test_lineage import annotation

TASKS = [Task("arith", ({"role": "user", "content": f"{n}+1="},), str(n + 1)) for n in range(3)]
ABOVE = Compare("reward", "gt", 0.4)


def rows(start: int, stop: int) -> list:
    return [
        make_experience(n, group_id=f"g{n // 4}", task_id=TASKS[n % 3].task_id, reward=(n % 10) / 10)
        for n in range(start, stop)
    ]


@pytest.mark.slow
@settings(max_examples=8)
@given(st.lists(st.sampled_from(["append", "tag", "tag_some", "compact"]), min_size=3, max_size=8))
def test_a_tag_reads_the_same_rows_for_ever(tmp_path_factory: pytest.TempPathFactory, steps):
    folder = tmp_path_factory.mktemp("views") / "buffer"
    stored, expected = 0, {}
    with Buffer(folder) as buffer:
        for number, step in enumerate(steps):
            if step == "append":
                buffer.append(rows(stored, stored + 5))
                stored += 5
            elif step == "compact":
                buffer.compact()
            else:
                where = ABOVE if step == "tag_some" else None
                made = tag(buffer, f"t{number}", where)
                expected[f"t{number}"] = made.view.read(buffer).to_pylist()
                kept = [n for n in range(stored) if where is None or n % 10 > 4]
                assert [row["seq"] for row in expected[f"t{number}"]] == kept
            for name, before in expected.items():
                assert view(buffer, name).read(buffer).to_pylist() == before
    with Buffer(folder, read_only=True) as reader:
        for name, before in expected.items():
            assert view(reader, name).read(reader).to_pylist() == before
            assert sum(batch.num_rows for batch in view(reader, name).batches(reader, ["seq"])) == len(before)


@pytest.mark.slow
def test_a_tag_never_changes(buffer):
    buffer.append(rows(0, 3))
    first = tag(buffer, "base", ABOVE, note="before cleaning")
    assert tag(buffer, "base", ABOVE) == first
    assert [(t.name, t.note, t.view.rows, t.view.where) for t in tags(buffer)] == [
        ("base", "before cleaning", 3, first.view.where)
    ]
    buffer.append(rows(3, 4))
    with pytest.raises(ConflictError, match="names other rows"):
        tag(buffer, "base", ABOVE)
    assert len(tags(buffer)) == 1


@pytest.mark.slow
def test_a_tag_that_cannot_be_read_spoils_no_other(buffer):
    tag(buffer, "good")
    buffer.add_rows("tags", [{"name": "bad", "rows": 1, "filter": {"no": "filter"}, "note": ""}])
    good, bad = tags(buffer)
    assert (good.name, good.fault) == ("good", "")
    assert "filter" in bad.fault
    assert view(buffer, "good") == good.view
    with pytest.raises(RecipeError, match=r"tag 'bad' .* has a filter that cannot be read"):
        view(buffer, "bad")
    with pytest.raises(ConflictError, match="names other rows"):
        tag(buffer, "bad")
    assert tag(buffer, "other").name == "other"


@pytest.mark.slow
def test_tag_refuses(buffer):
    tag(buffer, "empty")
    assert view(buffer, "empty").read(buffer).num_rows == 0
    with pytest.raises(RecipeError, match="did you mean 'empty'"):
        view(buffer, "emty")
    with pytest.raises(RecipeError, match="no name for a tag"):
        tag(buffer, "")
    with pytest.raises(RecipeError, match="did you mean 'reward'"):
        tag(buffer, "x", Compare("rewrd", "gt", 1))


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest):
    """Twelve rows of three tasks, each judged and one with a payload, feedback and a pair."""
    stored = getattr(request, "param", "folder") == "store"
    where = f"{request.getfixturevalue('bucket')}/source" if stored else tmp_path / "source"
    with Buffer(where) as buffer:
        buffer.add_tasks(TASKS)
        picture = buffer.add_payload(b"png", "image/png")
        buffer.add_payload(b"other", "image/png")
        data = rows(0, 12)
        data[5] = replace(data[5], payloads=(picture,))
        buffer.append(data[:6])
        buffer.append(data[6:])
        judged = [annotation(n, row.experience_id, advantage=n / 10) for n, row in enumerate(data)]
        buffer.annotate(pa.Table.from_pylist(judged, schema=ANNOTATIONS))
        kept = {"g0": [0, 1, 2, 3], "g1": [5, 6, 7], "g2": [8, 10]}
        task = TASKS[0].key
        buffer.add_rows(
            "groups",
            [
                group_row(
                    Played(Ticket(name, place, 3, place), task, "arrived", tuple(seqs), 4),
                    GroupResult(Ticket(name, place, 3, place), task, (0.5,) * 4, "arrived", 3, tuple(seqs)),
                    {"run_id": "run", "attempt": 0},
                )
                for place, (name, seqs) in enumerate(kept.items())
            ],
        )
        version = {"run_id": "run", "version": 3, "step": 6, "path": "v3", "manifest_digest": "d", "rows": 0}
        buffer.add_rows("versions", [version])
        buffer.add_feedback([Feedback(data[n].experience_id, "ann", "score", 1.0) for n in (5, 1)])
        answers = ({"role": "assistant", "content": "2"},), ({"role": "assistant", "content": "3"},)
        both = {
            "chosen_experience_id": data[5].experience_id,
            "rejected_experience_id": data[6].experience_id,
        }
        half = {**both, "rejected_experience_id": data[1].experience_id}
        pairs = [
            PreferencePair("mined", "arith", TASKS[2].task_id, *answers, **both),
            PreferencePair("mined", "arith", TASKS[2].task_id, *reversed(answers), **half),
        ]
        buffer.add_preferences(pairs)
        yield buffer, data


SOME = View(10, Compare("reward", "ge", 0.5))


@pytest.mark.heavy
@pytest.mark.parametrize("source", ["folder", "store"], indirect=True)
def test_branch_copies_rows_and_what_is_said_about_them(source):
    buffer, data = source
    place = f"{buffer.location.rpartition('/')[0]}/target"
    done = branch(buffer, place, SOME)
    assert done.experiences == 5
    assert done.new == {
        "experiences": 5,
        "tasks": 3,
        "payloads": 1,
        "annotations": 5,
        "groups": 1,
        "feedback": 1,
        "preferences": 1,
    }
    with Buffer(place) as target:
        copied = target.take(range(5))
        original = buffer.take(range(5, 10))
        assert copied.drop_columns(["seq"]).equals(original.drop_columns(["seq"]))
        assert copied["seq"].to_pylist() == list(range(5))
        judged = target.read("annotations", ["seq", "experience_id", "advantage"]).to_pylist()
        by_seq = dict(enumerate(copied["experience_id"].to_pylist()))
        assert [by_seq[row["seq"]] for row in judged] == [row["experience_id"] for row in judged]
        assert judged[0]["advantage"] == pytest.approx([0.5])
        assert target.payload(data[5].payloads[0]) == ("image/png", b"png")
        assert target.read("feedback", ["experience_id"])["experience_id"].to_pylist() == [
            data[5].experience_id
        ]
        counts = target.counts()
        assert [counts[name] for name in ("runs", "leases", "consumed")] == [0] * 3
        # g1 has rows 4 to 7, of which 4 is not in the view but was dropped; g2 has row 8, and lacks 10
        [group] = target.read("groups").to_pylist()
        assert (group["group_id"], group["seqs"]) == ("g1", [0, 1, 2])
        assert target.read("versions", ["version", "step", "path"]).to_pylist() == [
            {"version": 3, "step": 6, "path": ""}
        ]


@pytest.mark.slow
def test_branch_again_adds_only_what_is_missing(source, tmp_path: Path):
    buffer, data = source
    branch(buffer, tmp_path / "target", View(7))
    before = Buffer(tmp_path / "target", read_only=True).counts()
    assert set(branch(buffer, tmp_path / "target", View(7)).new.values()) == {0}
    assert Buffer(tmp_path / "target", read_only=True).counts() == before
    done = branch(buffer, tmp_path / "target", View())
    assert (done.experiences, done.new["experiences"], done.new["annotations"]) == (12, 5, 5)
    with Buffer(tmp_path / "target", read_only=True) as target:
        assert target.read("experiences", ["experience_id"])["experience_id"].to_pylist() == [
            r.experience_id for r in data
        ]


@pytest.mark.slow
def test_branch_of_nothing_is_an_empty_buffer(source, tmp_path: Path):
    buffer, _ = source
    done = branch(buffer, tmp_path / "target", View(None, In("source", ())))
    assert done.experiences == 0
    assert len(Buffer(tmp_path / "target", read_only=True)) == 0


@pytest.mark.slow
def test_branch_refuses_itself_and_other_content(source, tmp_path: Path):
    buffer, data = source
    with pytest.raises(RecipeError, match="cannot be the buffer itself"):
        branch(buffer, buffer.root, View())
    with Buffer(tmp_path / "target") as target:
        target.append([replace(data[5], reward=0.9)])
    with pytest.raises(ConflictError, match="already stored with other content"):
        branch(buffer, tmp_path / "target", View())
