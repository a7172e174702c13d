"""A queue of pairs for several people: who gets which pair, and what becomes of answers and of deaths."""

import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.core.errors import RftError, RowError
from rft_data.exchange.standing import excluded, said
from rft_data.web.app import make_app
from rft_data.web.claims import CLAIM_S, CLAIMS_FILE, Claims
from rft_data.web.pair_queue import Pair, Queue
from rft_data.web.subjects import Subjects
from rft_data.web.writing import write
from tests.rft_data.run.rejudge.explored import explore
from tests.rft_data.web.conftest import FORM_TOKEN

PAIRS = 14
_BOB = """
import sys, time
from rft_data.buffer import Buffer
from functools import partial
from rft_data.web.pair_queue import Queue
from rft_data.web.claims import Claims
from rft_data.web.writing import write
folder, answers = sys.argv[1], int(sys.argv[2])
with Buffer(folder, read_only=True) as buffer:
    queue = Queue(buffer, partial(write, buffer, None), Claims(folder))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(answers + 1):
        pair = queue.next_pair("bob")
        print(pair.left, pair.right, flush=True)
        if number < answers:
            queue.answer("bob", pair.left, pair.right, "a")
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Buffer(tmp_path / "buffer") as buffer:
        explore(buffer, [[1.0, 0.0]] * PAIRS)
    return tmp_path / "buffer"


@pytest.fixture
def reading(folder: Path) -> Iterator[Buffer]:
    with Buffer(folder, read_only=True) as buffer:
        yield buffer


def names(pair: Pair | None) -> frozenset[str]:
    assert pair is not None
    return frozenset((pair.left, pair.right))


@pytest.mark.slow
def test_no_pair_is_given_to_two_people_and_a_killed_one_loses_nothing(
    folder: Path, reading: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Queue(reading, partial(write, reading, None), Claims(str(folder)))
    child = [sys.executable, "-c", _BOB, str(folder), "4"]
    with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bob:
        assert bob.stdin is not None
        assert bob.stdout is not None
        try:
            bob.stdout.readline()
            bob.stdin.write("go\n")
            bob.stdin.flush()
            given, others = [], [frozenset(bob.stdout.readline().split())]
            reader = threading.Thread(
                target=lambda: others.extend(frozenset(bob.stdout.readline().split()) for _ in range(4))
            )
            reader.start()
            while len(given) + len(others) < PAIRS or reader.is_alive():
                pair = own.next_pair("ann")
                if pair is None:
                    time.sleep(0.01)
                    continue
                given.append(names(pair))
                own.answer("ann", pair.left, pair.right, "b")
            reader.join()
            assert own.next_pair("ann") is None, "bob holds the last one"
        finally:
            bob.kill()
    assert len(set(given)) == PAIRS - 5
    assert len(set(others)) == 5
    assert not set(given) & set(others)
    assert own.next_pair("ann") is None, "his claim outlives him"
    again = Queue(reading, partial(write, reading, None), Claims(str(folder)))
    assert names(again.next_pair("bob")) == others[-1], "he goes on where he was"
    later = time.time() + CLAIM_S + 1
    monkeypatch.setattr("rft_data.web.claims.time.time", lambda: later)
    pair = own.next_pair("ann")
    assert names(pair) == others[-1]
    assert pair is not None
    own.answer("ann", pair.left, pair.right, "a")
    with pytest.raises(RowError, match="has an answer already"):
        again.answer("bob", pair.left, pair.right, "b")
    assert again.next_pair("bob") is None
    chosen = reading.read("preferences", ["chosen_experience_id", "rejected_experience_id"]).to_pylist()
    assert {frozenset(pair.values()) for pair in chosen} == {*given, *others}
    assert len(chosen) == PAIRS


@pytest.mark.slow
def test_a_claim_that_came_after_an_answer_is_given_up(folder: Path, reading: Buffer) -> None:
    ann, bob = (Queue(reading, partial(write, reading, None), Claims(str(folder))) for _ in range(2))
    real, first = bob._claims.take, ann.next_pair("ann")
    assert first is not None

    def late(item: str, author: str, room: int) -> bool:
        if set(item.split()) == names(first):  # she answers between his look and his claim
            ann.answer("ann", first.left, first.right, "a")
        return real(item, author, room)

    bob._claims.take = late  # type: ignore[method-assign]
    assert names(bob.next_pair("bob")) != names(first)


@pytest.mark.slow
def test_a_claim_that_could_not_be_stored_does_not_hold_up_the_next_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.web.claims._WAIT_S", 0.01)
    claims = Claims(str(folder))
    for number in range(3):
        assert claims.take(f"pair {number}", "ann", 1)
    other = sqlite3.connect(folder / CLAIMS_FILE, isolation_level=None)
    reading = other.execute("select * from claims")
    reading.fetchone()
    with pytest.raises(RftError, match="cannot hold claims on items: database is locked"):
        claims.take("pair", "ann", 1)
    reading.close()
    other.close()
    assert claims.take("pair", "bob", 1), "ann's claim was not stored"
    claims.close()


def shown(page: TestClient, path: str) -> str:
    answer = page.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


def choose(page: TestClient, answer: str, people: int = 2) -> tuple[str, str]:
    text = shown(page, f"/s/buffer/choose?people={people}")
    left, right = re.findall(r'name="(?:left|right)" value="([^"]+)"', text)
    form = {"form_token": FORM_TOKEN, "left": left, "right": right, "answer": answer, "people": str(people)}
    assert page.post("/s/buffer/choose", data=form).status_code == 303
    return left, right


@pytest.mark.slow
def test_two_people_may_both_be_asked_and_their_agreement_is_shown(folder: Path) -> None:
    with Subjects([str(folder)]) as subjects:
        ann, bob, eve = (
            TestClient(make_app(subjects, who, FORM_TOKEN), follow_redirects=False)
            for who in ("ann", "bob", "eve")
        )
        asked = [choose(ann, answer) for answer in "abab"]
        assert [choose(bob, answer) for answer in "abba"] == asked
        assert not {choose(eve, "s")} & set(asked), "two have answered it"
        said = shown(ann, "/s/buffer/said")
        assert re.search(r"<td>preferred</td><td>ann, bob</td><td class=\"n\">4</td>", said)
        assert re.search(r"50 %</td><td>Cohen&#39;s kappa</td><td class=\"n\">", said)
        form = {"form_token": FORM_TOKEN, "people": "2"}
        assert ann.post("/s/buffer/choose/undo", data={**form, "form_token": "x"}).status_code == 403
        assert ann.post("/s/buffer/choose/undo", data=form).status_code == 303
        assert choose(ann, "a") == asked[-1], "it is asked again"
        assert ">75 %<" in shown(ann, "/s/buffer/said")
        assert eve.post("/s/buffer/choose/undo", data=form).status_code == 303
        assert eve.post("/s/buffer/choose/undo", data=form).status_code == 400, "nothing is left to undo"


@pytest.mark.slow
def test_undo_takes_back_one_choice_of_several_with_the_same_better_row(
    folder: Path, reading: Buffer
) -> None:
    with Buffer(folder) as buffer:
        explore(buffer, [[1.0, 0.5, 0.0]], run_id="three")
    one, two, three = (
        row["experience_id"]
        for row in reading.read("experiences", ["experience_id", "run_id"]).to_pylist()
        if row["run_id"] == "three"
    )
    queue = Queue(reading, partial(write, reading, None), Claims(str(folder)))
    queue.answer("ann", one, two, "a")
    queue.answer("ann", one, three, "a")
    for standing in ([two], []):
        queue.undo("ann")
        words = said(reading, ["preferred"])
        assert [word.text for word in words if word.taken_back is None] == standing
        assert {choice[1] for choice in excluded(reading).choices} == {two, three} - set(standing)
