"""What a person says on the page: stored as feedback, taken back by feedback, read where the page says so."""

import html
import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.core.errors import TrainingError
from rft_data.core.failpoints import armed
from rft_data.core.lock import Lock
from rft_data.core.rows import Feedback
from rft_data.exchange.annotate import store_corrections, store_said
from rft_data.exchange.standing import excluded, retired_tasks
from rft_data.placement.hub.server import HubServer
from rft_data.run.hub_file import hub_offered, offered_hub
from rft_data.run.record import HUB_FILE, LOCK_FILE
from rft_data.web.app import make_app
from rft_data.web.feedback_effects import NO_RECIPE, NOTHING, where_it_counts
from rft_data.web.subjects import Subjects
from tests.rft_data.run.rejudge.explored import explore
from tests.rft_data.web.conftest import FORM_TOKEN
from tests.waiting import LIMIT_S
from trainers.offline.stored_pairs import PairChoice, chosen_pairs
from trainers.offline.stored_rows import EXCLUDED, RowChoice, chosen_rows

RECIPE = {
    "name": "run",
    "run_dir": "",
    "mode": "online",
    "selector": {"use": "difficulty"},
    "rewards": {"wait_s": 60.0},
    "experience_ops": [
        {"feedback_mapper": {"key": "thumb"}},
        {"feedback_mapper": {"key": "tag:odd", "into": "stats"}},
        {"reward_range_filter": {}},
    ],
    "stages": [
        {"algorithm": "sft", "data": {"sources": ["expert"], "feedback": "score"}},
        {"algorithm": "dpo", "data": {"pairs": "stored"}},
        {"algorithm": "grpo"},
    ],
}

START = {"run_id": "run", "recipe_hash": "h", "code_version": "0", "attempt": 0}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's folder, with two groups of two."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(RECIPE))
    with Buffer(tmp_path / "run" / "buffer") as buffer:
        explore(buffer, [[1.0, 0.0], [0.0, 1.0]])
    return tmp_path / "run"


@pytest.fixture
def subjects(run_dir: Path) -> Iterator[Subjects]:
    with Subjects([str(run_dir)]) as found:
        yield found


@pytest.fixture
def page(subjects: Subjects) -> TestClient:
    return TestClient(make_app(subjects, "ann", FORM_TOKEN), follow_redirects=False)


@pytest.fixture
def reading(subjects: Subjects) -> Buffer:
    return subjects.buffer("run")


def act(page: TestClient, act: str, text: str = "", seq: int = 0, status: int = 303) -> None:
    form = {"act": act, "text": text, "form_token": FORM_TOKEN}
    answer = page.post(f"/s/run/rows/{seq}/word", data=form)
    assert answer.status_code == status, answer.text


def take_back(page: TestClient, reading: Buffer, about: str, seq: int = 0, status: int = 303) -> None:
    name = reading.take([seq])["experience_id"][0].as_py()
    form = {"experience": name, "about": about, "form_token": FORM_TOKEN}
    assert page.post("/s/run/said/back", data=form).status_code == status


def text_of(page: TestClient, path: str) -> str:
    answer = page.get(path)
    assert answer.status_code == 200
    return html.unescape(answer.text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "text", "key", "value", "stored"),
    [
        ("up", "", "thumb", 1.0, None),
        ("down", "wrong unit", "thumb", 0.0, "wrong unit"),
        ("tag", "odd", "tag:odd", 1.0, None),
        ("quarantine", "leaked", "quarantine", 1.0, "leaked"),
        ("readmit", "", "quarantine", 0.0, None),
        ("retire", "", "retire_task", 1.0, None),
        ("bring_back", "", "retire_task", 0.0, None),
        ("correct", "better", "edit", None, "better"),
    ],
)
def test_an_act_is_a_row_of_feedback_and_so_is_taking_it_back(
    page: TestClient, reading: Buffer, what: str, text: str, key: str, value: float | None, stored: str | None
) -> None:
    act(page, what, text)
    row = reading.tail("feedback", 1).to_pylist()[0]
    assert (row["author"], row["key"], row["value"], row["text"]) == ("ann", key, value, stored)
    take_back(page, reading, key)
    assert reading.counts()["feedback"] == 2, "nothing is erased"
    assert "taken back" in text_of(page, "/s/run/said")
    assert "taken back" in text_of(page, "/s/run/rows/0")
    act(page, what, text)
    newest = text_of(page, "/s/run/said").partition("<tbody>")[2].partition("</tr>")[0]
    assert "Take back" in newest


@pytest.mark.slow
def test_what_says_nothing_is_refused(page: TestClient, subjects: Subjects, reading: Buffer) -> None:
    answer = reading.take([0])["completion_text"][0].as_py()
    for what, text in (("tag", ""), ("tag", "a\nb"), ("correct", " "), ("correct", answer)):
        act(page, what, text, status=400)
    act(page, "shout", status=422)
    act(page, "up", seq=99, status=404)
    take_back(page, reading, "thumb", status=400)
    form = {"act": "up", "form_token": "another"}
    assert page.post("/s/run/rows/0/word", data=form).status_code == 403
    only_shows = TestClient(make_app(subjects, None, FORM_TOKEN))
    form["form_token"] = FORM_TOKEN
    assert only_shows.post("/s/run/rows/0/word", data=form).status_code == 403
    assert reading.counts()["feedback"] == 0


@pytest.mark.slow
def test_a_correction_is_a_row_to_imitate_and_a_pair_until_it_is_taken_back(
    page: TestClient, reading: Buffer
) -> None:
    parent = reading.take([0]).to_pylist()[0]
    act(page, "correct", "much better")
    rows = chosen_rows(reading, RowChoice(sources=["expert"])).table.to_pylist()
    assert [row["completion_text"] for row in rows] == ["much better"]
    assert json.loads(rows[0]["metadata"])["parent_experience_id"] == parent["experience_id"]
    assert json.loads(rows[0]["messages"])[0] == json.loads(parent["messages"])[0]
    [pair] = chosen_pairs(reading, PairChoice()).pairs
    assert pair.chosen[-1]["content"] == "much better"
    assert pair.rejected[-1]["content"] == parent["completion_text"]
    assert pair.rejected_experience_id == parent["experience_id"]
    assert pair.metadata["parent_experience_id"] == parent["experience_id"]
    take_back(page, reading, "edit")
    for choose in (
        lambda: chosen_rows(reading, RowChoice(sources=["expert"])),
        lambda: chosen_pairs(reading, PairChoice()),
    ):
        with pytest.raises(TrainingError, match=EXCLUDED):
            choose()
    act(page, "correct", "much better")
    assert chosen_rows(reading, RowChoice(sources=["expert"])).table.num_rows == 1, "he said it again"


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2])
def test_a_correction_has_its_row_and_its_pair_whenever_storing_them_fails(run_dir: Path, at: int) -> None:
    with Buffer(run_dir / "buffer") as buffer:
        row = buffer.take([0])["experience_id"][0].as_py()
        buffer.add_feedback([Feedback(row, "ann", "edit", None, "better")])
        with armed("store.write", at), pytest.raises(OSError, match="failpoint"):
            store_corrections(buffer)
        store_corrections(buffer)
        assert buffer.counts()["preferences"] == 1
        assert buffer.counts()["experiences"] == 5


@pytest.mark.slow
def test_rows_in_quarantine_are_not_trained_on_until_somebody_admits_them_again(
    page: TestClient, subjects: Subjects, reading: Buffer
) -> None:
    assert chosen_rows(reading, RowChoice()).table["seq"].to_pylist() == [0, 1, 2, 3]
    assert len(chosen_pairs(reading, PairChoice(pairs="mined")).pairs) == 2
    act(page, "quarantine", "leaked", seq=1)
    found = chosen_rows(reading, RowChoice())
    assert found.table["seq"].to_pylist() == [0, 2, 3]
    assert found.left_out[EXCLUDED] == 1
    assert len(chosen_pairs(reading, PairChoice(pairs="mined")).pairs) == 1
    bob = TestClient(make_app(subjects, "bob", FORM_TOKEN), follow_redirects=False)
    act(bob, "readmit", seq=1)
    assert chosen_rows(reading, RowChoice()).table["seq"].to_pylist() == [0, 1, 2, 3]
    take_back(bob, reading, "quarantine", seq=1)
    assert excluded(reading).rows, "ann's word stands"
    take_back(page, reading, "quarantine", seq=1)
    assert not excluded(reading).rows


@pytest.mark.slow
def test_a_choice_that_is_taken_back_is_not_trained_on(page: TestClient, reading: Buffer) -> None:
    text = text_of(page, "/s/run/choose")
    left, right = re.findall(r'name="(?:left|right)" value="([^"]+)"', text)
    form = {"form_token": FORM_TOKEN, "left": left, "right": right, "answer": "a"}
    assert page.post("/s/run/choose", data=form).status_code == 303
    assert [pair.chosen_experience_id for pair in chosen_pairs(reading, PairChoice()).pairs] == [left]
    assert page.post("/s/run/choose/undo", data={"form_token": FORM_TOKEN}).status_code == 303
    with pytest.raises(TrainingError, match=EXCLUDED):
        chosen_pairs(reading, PairChoice())
    assert page.post("/s/run/choose", data={**form, "answer": "b"}).status_code == 303
    assert [pair.chosen_experience_id for pair in chosen_pairs(reading, PairChoice()).pairs] == [right]


@pytest.mark.slow
def test_beside_a_live_run_words_go_through_its_hub(
    page: TestClient, reading: Buffer, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.web.writing.PATIENCE_S", 0)
    lock = Lock(run_dir / LOCK_FILE)
    with Buffer(run_dir / "buffer") as owner:
        act(page, "up", status=409)
        with HubServer(owner) as hub, hub_offered(run_dir, owner.location, hub.address, hub.token):
            assert (run_dir / HUB_FILE).stat().st_mode & 0o777 == 0o600
            assert hub.token not in (run_dir / HUB_FILE).read_text(), "the secret stays with the run"
            act(page, "up")
            act(page, "correct", "through the hub")
            act(page, "correct", "through the hub, again", seq=2)
            take_back(page, reading, "edit", seq=2)
        assert not (run_dir / HUB_FILE).exists()
        assert owner.counts()["feedback"] == 4
        assert owner.counts()["preferences"] == 0
        assert store_said(owner) == 1, "what stands becomes a row before a stage is trained"
        assert store_said(owner) == 0
    lock.release()
    assert len(chosen_pairs(reading, PairChoice()).pairs) == 1
    with hub_offered(run_dir, reading.location, "hub://127.0.0.1:1", "of-a-dead-run"):
        assert offered_hub(run_dir, reading.location) is None, "its process is gone"
        act(page, "down")
    assert reading.counts()["feedback"] == 5


@pytest.mark.slow
def test_a_copy_of_a_live_runs_buffer_is_not_written_through_its_hub(run_dir: Path, tmp_path: Path) -> None:
    with Buffer(run_dir / "buffer") as owner:
        owner.add_rows("runs", [{**START, "recipe": {"run_dir": str(run_dir)}}])
    shutil.copytree(run_dir / "buffer", tmp_path / "copy")
    lock = Lock(run_dir / LOCK_FILE)
    with (
        Buffer(run_dir / "buffer") as owner,
        HubServer(owner) as hub,
        hub_offered(run_dir, owner.location, hub.address, hub.token),
        Subjects([str(tmp_path / "copy"), str(run_dir / "buffer")]) as both,
    ):
        pages = TestClient(make_app(both, "ann", FORM_TOKEN), follow_redirects=False)
        for key, stored in (("copy", (1, 0)), ("buffer", (1, 1))):
            form = {"act": "up", "form_token": FORM_TOKEN}
            assert pages.post(f"/s/{key}/rows/0/word", data=form).status_code == 303
            assert (both.buffer("copy").counts()["feedback"], owner.counts()["feedback"]) == stored
    lock.release()


@pytest.mark.slow
def test_a_task_is_retired_by_its_newest_word(page: TestClient, subjects: Subjects, reading: Buffer) -> None:
    bob = TestClient(make_app(subjects, "bob", FORM_TOKEN), follow_redirects=False)
    for who, what, retired in ((page, "retire", True), (bob, "bring_back", False), (page, "retire", True)):
        act(who, what, seq=2)
        assert list(retired_tasks(reading).values()) == [retired]
    [key] = retired_tasks(reading)
    assert key.task_id == "t1"
    take_back(page, reading, "retire_task", seq=2)
    assert retired_tasks(reading) == {key: False}
    words = reading.read("feedback").sort_by("created_at")["created_at"].to_pylist()
    assert retired_tasks(reading, before=words[0]) == {}
    assert retired_tasks(reading, before=words[1]) == {key: True}


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("thumb", "operator 1, feedback_mapper, makes it the reward"),
        ("thumb", "at most 60 s (rewards.wait_s)"),
        ("tag:odd", "operator 2, feedback_mapper, makes it a column"),
        ("score", "stage 0, sft, takes it as the row's score"),
        ("edit", "stage 0, sft, trains on the corrected answer"),
        ("edit", "stage 1, dpo, trains on the pair"),
        ("preferred", "stage 1, dpo"),
        ("quarantine", "stage 0, sft, leaves the row out"),
        ("retire_task", "selector difficulty no longer draws the task"),
        ("comment", NOTHING),
    ],
)
def test_where_a_word_counts_is_said(key: str, wanted: str) -> None:
    assert wanted in " ".join(where_it_counts(RECIPE, key))
    assert where_it_counts(None, key) == [NO_RECIPE]


@pytest.mark.slow
def test_the_row_says_where_its_words_count(page: TestClient) -> None:
    act(page, "up")
    text = text_of(page, "/s/run/rows/0")
    assert "Counts: operator 1, feedback_mapper, makes it the reward" in text
    assert NOTHING not in text.partition("What people said")[2].partition("</ul>")[0]


@pytest.mark.slow
def test_a_word_waits_for_a_page_that_has_the_buffer_for_a_moment(
    page: TestClient, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.web.writing.PATIENCE_S", LIMIT_S)
    owner = Buffer(run_dir / "buffer")
    release = threading.Timer(0.7, owner.close)  # the lock itself is waited for 0.5 s
    release.start()
    act(page, "up")
    release.join()
