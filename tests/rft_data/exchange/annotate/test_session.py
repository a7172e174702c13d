"""A session stores each answer at once, goes on where its author stopped, and can take answers back."""

import pytest

from rft_data.buffer import Buffer
from rft_data.exchange.annotate import Session, comparisons, ratings
from rft_data.exchange.feedback import feedback_about, fold
from tests.rft_data.run.rejudge.explored import explore

REWARDS = [[1.0, 0.0], [0.5, 0.25], [0.0, 0.0]]


@pytest.fixture
def stored(buffer: Buffer) -> Buffer:
    explore(buffer, REWARDS)
    return buffer


def rate(buffer: Buffer, keys: str, author: str = "ann") -> Session:
    session = Session(buffer, author, ratings(buffer, "run"))
    for key in keys:
        assert session.answer(key), f"'{key}' was not taken"
    return session


def scores(buffer: Buffer, author: str = "ann") -> dict[str, float]:
    """Member texts to the scores that stand."""
    rows = buffer.take(range(6))
    ids = rows.column("experience_id").to_pylist()
    said = feedback_about(buffer, "score", ids)
    mine = said.filter([who == author for who in said.column("author").to_pylist()])
    found = fold(mine, "last")
    named = dict(zip(ids, rows.column("completion_text").to_pylist(), strict=True))
    return {
        named[name]: value for name, value in zip(found.ids.to_pylist(), found.values.tolist(), strict=True)
    }


@pytest.mark.slow
def test_an_answer_is_stored_before_the_next_is_shown(stored: Buffer) -> None:
    session = Session(stored, "ann", ratings(stored, "run"))
    assert session.current().left.completion_text == "answer 0 of group 0"
    assert session.answer("4")
    assert scores(stored) == {"answer 0 of group 0": 4.0}
    assert session.current().left.completion_text == "answer 1 of group 0"


@pytest.mark.slow
def test_a_new_session_goes_on_where_this_author_stopped(stored: Buffer) -> None:
    rate(stored, "4s0")
    assert rate(stored, "").current().left.completion_text == "answer 1 of group 1"
    assert rate(stored, "", author="bob").current().left.completion_text == "answer 0 of group 0"
    assert scores(stored) == {"answer 0 of group 0": 4.0, "answer 0 of group 1": 0.0}


@pytest.mark.slow
def test_undo_takes_back_and_shows_again(stored: Buffer) -> None:
    session = rate(stored, "43u")
    assert session.current().left.completion_text == "answer 1 of group 0"
    assert scores(stored) == {"answer 0 of group 0": 4.0}
    assert session.answer("3"), "the same answer again is an answer"
    assert scores(stored)["answer 1 of group 0"] == 3.0
    for key in "uu":
        assert session.answer(key)
    assert scores(stored) == {}
    assert not session.answer("u"), "nothing is left to undo"
    assert session.answer("4")
    assert scores(stored) == {"answer 0 of group 0": 4.0}
    assert session.counts["score"] == 1
    assert rate(stored, "").current().left.completion_text == "answer 1 of group 0"


@pytest.mark.slow
def test_an_undone_skip_is_asked_again_later(stored: Buffer) -> None:
    session = rate(stored, "su")
    assert session.current().left.completion_text == "answer 0 of group 0"
    assert rate(stored, "s").current().left.completion_text == "answer 1 of group 0"


@pytest.mark.slow
@pytest.mark.parametrize("key", ["6", "a", "x", "\x1b"])
def test_a_key_that_means_nothing_stores_nothing(stored: Buffer, key: str) -> None:
    session = rate(stored, "")
    assert not session.answer(key)
    assert stored.counts()["feedback"] == 0


@pytest.mark.slow
def test_after_the_last_subject_there_is_none(stored: Buffer) -> None:
    session = rate(stored, "012345")
    assert session.current() is None
    assert not session.answer("3")
    assert len(scores(stored)) == 6


def choose(buffer: Buffer, keys: str, author: str = "ann") -> Session:
    session = Session(buffer, author, comparisons(buffer, "run"))
    for key in keys:
        assert session.answer(key)
    return session


def chosen(buffer: Buffer) -> list[tuple[str, str]]:
    columns = ["chosen_experience_id", "rejected_experience_id"]
    return [tuple(row.values()) for row in buffer.read("preferences", columns).to_pylist()]


@pytest.mark.slow
def test_choices_become_pairs_when_the_session_is_closed(stored: Buffer) -> None:
    subjects = list(comparisons(stored, "run"))
    session = choose(stored, "ab")
    assert stored.counts()["preferences"] == 0
    assert session.close() == 2
    first, second = ((s.left.experience_id, s.right.experience_id) for s in subjects[:2])
    assert chosen(stored) == [first, second[::-1]]
    assert session.close() == 0
    row = stored.read("preferences").to_pylist()[0]
    assert (row["source"], row["author"]) == ("human", "ann")


@pytest.mark.slow
def test_a_choice_that_was_undone_is_no_pair(stored: Buffer) -> None:
    session = choose(stored, "aub")
    left, right = (
        s.experience_id for s in (session._answers[0].subject.left, session._answers[0].subject.right)
    )
    session.close()
    assert chosen(stored) == [(right, left)]


@pytest.mark.slow
def test_choices_of_a_killed_session_become_pairs_in_the_next(stored: Buffer) -> None:
    choose(stored, "ab")
    assert len(list(comparisons(stored, "run"))) == 3
    session = choose(stored, "")
    assert stored.counts()["preferences"] == 2
    assert session.current().left.group_id == "run/0-00000002"


@pytest.mark.slow
def test_a_skipped_pair_is_passed_over_whichever_side_was_better(stored: Buffer) -> None:
    choose(stored, "sb")
    assert choose(stored, "").current().left.group_id == "run/0-00000002"


def test_equal_answers_make_no_pair(buffer: Buffer) -> None:
    from tests.rft_data.conftest import make_experience

    same = [make_experience(n, prompt_messages=1) for n in range(2)]
    buffer.append(same)
    assert list(comparisons(buffer)) == []
    assert len(list(ratings(buffer))) == 2
