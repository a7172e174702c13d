"""Label Studio: the tasks it is given, and what its JSON export brings back."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError, RowError
from rft_data.core.filters import parse_text
from rft_data.core.schema import EXPERIENCES
from rft_data.exchange.annotate import export_tasks, import_annotations
from rft_data.exchange.feedback import feedback_about, fold
from tests.rft_data.run.rejudge.explored import explore

REWARDS = [[1.0, 0.0], [0.5, None]]


@pytest.fixture
def stored(buffer: Buffer) -> Buffer:
    explore(buffer, REWARDS)
    return buffer


def annotated(path: Path, kind: str, answer: Callable[[int, dict], list], **fields: object) -> Path:
    """The exported tasks as Label Studio exports them again, with one annotation each."""
    tasks = json.loads(path.read_text())
    for number, task in enumerate(tasks):
        task |= {"id": number + 1, "project": 3, "predictions": []}
        task["annotations"] = [
            {
                "id": 100 + number,
                "completed_by": 7,
                "result": answer(number, task["data"]),
                "was_cancelled": False,
                "ground_truth": False,
                "created_at": "2026-03-09T21:52:49.513742Z",
                "updated_at": "2026-03-09T22:16:08.746926Z",
                "lead_time": 4.2,
                **fields,
            }
        ]
    target = path.with_name(f"{kind}-annotated.json")
    target.write_text(json.dumps(tasks))
    return target


def rating(value: object, name: str = "score") -> dict:
    return {
        "id": "x1",
        "from_name": name,
        "to_name": "completion",
        "type": "rating",
        "value": {"rating": value},
    }


def choice(side: object) -> dict:
    return {
        "id": "x1",
        "from_name": "preference",
        "to_name": "left,right",
        "type": "pairwise",
        "value": {"selected": side},
    }


@pytest.mark.slow
def test_tasks_to_rate_name_what_the_configuration_shows(stored: Buffer, tmp_path: Path) -> None:
    done = export_tasks(stored, tmp_path / "tasks.json", "rating")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert done.tasks == len(tasks) == 4
    assert tasks[0]["data"]["prompt"] == "question 0"
    assert tasks[0]["data"]["completion"] == "answer 0 of group 0"
    assert [task["data"]["reward"] for task in tasks] == [1.0, 0.0, 0.5, None]
    config = ElementTree.fromstring((tmp_path / "tasks.xml").read_text())  # noqa: S314  our own file
    shown = {tag.get("value") for tag in config.iter("Text")}
    assert shown == {"$prompt", "$completion"}
    assert [tag.get("toName") for tag in config.iter("Rating")] == ["completion"]


@pytest.mark.slow
def test_pairs_to_compare_are_of_one_group_and_on_either_side(buffer: Buffer, tmp_path: Path) -> None:
    explore(buffer, [[1.0, 0.0, 0.5]] * 12)
    export_tasks(buffer, tmp_path / "tasks.json", "pairwise")
    tasks = [task["data"] for task in json.loads((tmp_path / "tasks.json").read_text())]
    assert len(tasks) == 12, "the third of a group has no partner"
    sides = {task["left_reward"] for task in tasks}
    assert sides == {0.0, 1.0}, "the first stored is always on one side"
    for task in tasks:
        assert task["left"].split(" of ")[1] == task["right"].split(" of ")[1]
    config = ElementTree.fromstring((tmp_path / "tasks.xml").read_text())  # noqa: S314  our own file
    assert [tag.get("toName") for tag in config.iter("Pairwise")] == ["left,right"]
    assert {tag.get("name") for tag in config.iter("Text")} == {"prompt", "left", "right"}


@pytest.mark.slow
def test_a_filter_and_a_limit_choose(stored: Buffer, tmp_path: Path) -> None:
    where = parse_text("reward is not null", EXPERIENCES)
    done = export_tasks(stored, tmp_path / "a.json", "rating", run_id="run", where=where, limit=2)
    assert done.tasks == 2
    assert export_tasks(stored, tmp_path / "b.json", "rating", where=where).tasks == 3
    assert export_tasks(stored, tmp_path / "c.json", "rating", run_id="nobody").tasks == 0
    assert json.loads((tmp_path / "c.json").read_text()) == []


@pytest.mark.slow
def test_an_export_is_not_overwritten_unasked(stored: Buffer, tmp_path: Path) -> None:
    export_tasks(stored, tmp_path / "a.json", "rating")
    with pytest.raises(ConflictError, match="give --overwrite"):
        export_tasks(stored, tmp_path / "a.json", "rating")
    export_tasks(stored, tmp_path / "a.json", "pairwise", overwrite=True)
    (tmp_path / "mine.xml").write_text("mine")
    with pytest.raises(ConflictError, match=r"mine\.xml exists already; give --overwrite"):
        export_tasks(stored, tmp_path / "mine.json", "rating")
    assert (tmp_path / "mine.xml").read_text() == "mine"
    assert not (tmp_path / "mine.json").exists()
    export_tasks(stored, tmp_path / "mine.json", "rating", overwrite=True)
    with pytest.raises(RowError, match=r"does not end in \.json"):
        export_tasks(stored, tmp_path / "a.txt", "rating")


@pytest.mark.slow
def test_ratings_and_comments_come_back_as_feedback_once(stored: Buffer, tmp_path: Path) -> None:
    export_tasks(stored, tmp_path / "t.json", "rating")
    comment = {
        "from_name": "comment",
        "to_name": "completion",
        "type": "textarea",
        "value": {"text": ["ok", "so"]},
    }
    path = annotated(
        tmp_path / "t.json", "rating", lambda n, _: [rating(n + 1), *([comment] if n == 0 else [])]
    )
    done = import_annotations(stored, path)
    assert (done.tasks, done.annotations, done.feedback_new, done.skipped) == (4, 4, 5, {})
    rows = stored.read("feedback").to_pylist()
    assert [row["value"] for row in rows if row["key"] == "score"] == [1.0, 2.0, 3.0, 4.0]
    assert [row["text"] for row in rows if row["key"] == "comment"] == ["ok\nso"]
    assert {row["author"] for row in rows} == {"label-studio:7"}
    assert rows[0]["created_at"].isoformat() == "2026-03-09T22:16:08.746926+00:00"
    assert import_annotations(stored, path).feedback_new == 0


@pytest.mark.slow
def test_a_rating_changed_back_is_the_newest(stored: Buffer, tmp_path: Path) -> None:
    export_tasks(stored, tmp_path / "t.json", "rating", limit=1)
    for day, value in enumerate((3, 5, 3), 1):
        stamp = f"2026-03-1{day}T00:00:00Z"
        path = annotated(tmp_path / "t.json", "rating", lambda *_, v=value: [rating(v)], updated_at=stamp)
        assert import_annotations(stored, path).feedback_new == 1
        assert import_annotations(stored, path).feedback_new == 0
    [name] = set(stored.read("feedback", ["experience_id"]).column(0).to_pylist())
    assert fold(feedback_about(stored, "score", [name]), "last").values.tolist() == [3.0]


@pytest.mark.slow
def test_annotations_without_a_time_come_back_once(stored: Buffer, tmp_path: Path) -> None:
    export_tasks(stored, tmp_path / "t.json", "rating")
    fields = {"created_at": None, "updated_at": None}
    path = annotated(tmp_path / "t.json", "rating", lambda *_: [rating(3)], **fields)
    assert import_annotations(stored, path).feedback_new == 4
    assert import_annotations(stored, path).feedback_new == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("result", "fields", "message"),
    [
        ([rating(3)], {"updated_at": "yesterday"}, "'yesterday' is not a time"),
        ([rating(3)], {"updated_at": 5}, "5 is not a time"),
        ([rating(10**400)], {}, "a finite number is needed"),
        ([rating(3, "sc\ud800re")], {}, "not Unicode at character 3"),
        ([rating(3)], {"completed_by": "\ud800"}, "'completed_by' is '\\\\ud800'"),
    ],
)
def test_one_wrong_annotation_is_named_by_line_and_nothing_is_stored(
    stored: Buffer, tmp_path: Path, result: list, fields: dict, message: str
) -> None:
    export_tasks(stored, tmp_path / "t.json", "rating", limit=2)
    path = annotated(tmp_path / "t.json", "rating", lambda n, _: result if n else [rating(1)])
    good, bad = json.loads(path.read_text())
    bad["annotations"][0] |= fields
    path.write_text(f"[{json.dumps(good)},\n{json.dumps(bad)}]")
    with pytest.raises(RowError, match=rf"rating-annotated\.json:2: .*{message}.*\. Nothing is stored"):
        import_annotations(stored, path)
    assert stored.counts()["feedback"] == 0


@pytest.mark.slow
def test_an_export_that_stops_stores_nothing_and_says_so(stored: Buffer, tmp_path: Path) -> None:
    export_tasks(stored, tmp_path / "t.json", "rating")
    path = annotated(tmp_path / "t.json", "rating", lambda *_: [rating(3)])
    path.write_text(path.read_text()[:-5])
    with pytest.raises(RowError, match=r"cannot be read on: .* Nothing is stored"):
        import_annotations(stored, path)
    assert stored.counts()["feedback"] == 0


@pytest.mark.slow
def test_choices_come_back_as_pairs_once(stored: Buffer, tmp_path: Path) -> None:
    export_tasks(stored, tmp_path / "t.json", "pairwise")
    who = {"id": 7, "email": "ann@example.org"}
    path = annotated(
        tmp_path / "t.json", "pairwise", lambda n, _: [choice("left" if n else "right")], completed_by=who
    )
    assert import_annotations(stored, path).preferences_new == 2
    assert import_annotations(stored, path).preferences_new == 0
    tasks = [task["data"] for task in json.loads((tmp_path / "t.json").read_text())]
    rows = stored.read("preferences").to_pylist()
    wanted = [tasks[0]["right_experience_id"], tasks[1]["left_experience_id"]]
    assert [row["chosen_experience_id"] for row in rows] == wanted
    assert {(row["source"], row["author"]) for row in rows} == {("human", "ann@example.org")}
    assert json.loads(rows[0]["chosen"]) == [{"role": "assistant", "content": tasks[0]["right"]}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "result", "fields", "reason"),
    [
        ("rating", [rating(3)], {"was_cancelled": True}, "cancelled by its author"),
        ("rating", None, {}, "an annotation without results"),
        ("rating", [{"type": "choices", "value": {"choices": ["x"]}}], {}, "a result of type 'choices'"),
        ("rating", ["?"], {}, "a result of type None"),
        ("rating", [rating(None)], {}, "a rating without a value"),
        ("rating", [rating(True)], {}, "a rating without a value"),
        ("pairwise", [rating(3)], {}, "its task has no 'experience_id'"),
        ("rating", [choice("left")], {}, "its task has no 'left_experience_id' and 'right_experience_id'"),
        ("pairwise", [choice("both")], {}, "a choice of 'both', which is neither 'left' nor 'right'"),
    ],
)
def test_what_cannot_be_taken_is_left_out_with_a_reason(
    stored: Buffer, tmp_path: Path, kind: str, result: object, fields: dict, reason: str
) -> None:
    tasks = export_tasks(stored, tmp_path / "t.json", kind)
    done = import_annotations(stored, annotated(tmp_path / "t.json", kind, lambda *_: result, **fields))
    assert done.skipped == {reason: tasks.tasks}
    assert (done.feedback_new, done.preferences_new) == (0, 0)


@pytest.mark.slow
def test_experiences_of_another_buffer_are_left_out(stored: Buffer, tmp_path: Path) -> None:
    export_tasks(stored, tmp_path / "t.json", "rating")
    export_tasks(stored, tmp_path / "p.json", "pairwise")
    rated = annotated(tmp_path / "t.json", "rating", lambda *_: [rating(3)])
    compared = annotated(tmp_path / "p.json", "pairwise", lambda *_: [choice("left")])
    with Buffer(tmp_path / "empty") as empty:
        assert sum(import_annotations(empty, rated).skipped.values()) == 4
        assert sum(import_annotations(empty, compared).skipped.values()) == 2
        assert empty.counts()["feedback"] == empty.counts()["preferences"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"id": 1, "prompt": "flat", "score": 3}]', "export the project as JSON"),
        ("[1]", "wanted a task as Label Studio exports it"),
        ("{not json", "not JSON"),
    ],
)
def test_another_file_is_refused(stored: Buffer, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(RowError, match=message):
        import_annotations(stored, tmp_path / "f.json")
