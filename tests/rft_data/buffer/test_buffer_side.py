"""Preferences, feedback and payloads: the small tables beside the experiences."""

import pytest

from rft_data.buffer import Buffer
from rft_data.core.codec import to_preferences
from rft_data.core.errors import IntegrityError, RowError
from rft_data.core.filters import Compare
from rft_data.core.rows import Feedback, PreferencePair
from tests.rft_data.conftest import make_experience

ASKED = ({"role": "user", "content": "2+2?"},)
FOUR, FIVE = ({"role": "assistant", "content": "4"},), ({"role": "assistant", "content": "5"},)


def test_preferences_are_stored_once_and_come_back_whole(buffer: Buffer) -> None:
    pair = PreferencePair("human", "arith", "t", FOUR, FIVE, ASKED, chosen_score=1.0, author="ann")
    implicit = PreferencePair("import", "arith", "t", (*ASKED, *FOUR), (*ASKED, *FIVE), metadata={"k": [1]})
    assert buffer.add_preferences([pair, implicit, pair]) == 2
    assert buffer.add_preferences([pair]) == 0
    stored = to_preferences(buffer.read("preferences"))
    assert [p.preference_id for p in stored] == [pair.preference_id, implicit.preference_id]
    assert (stored[0].author, stored[0].chosen_score, stored[0].rejected_score) == ("ann", 1.0, None)
    assert (stored[1].metadata, list(stored[1].messages)) == ({"k": [1]}, [])


@pytest.mark.slow
def test_feedback_names_the_row_it_is_about(buffer: Buffer) -> None:
    row = make_experience(0, reward=None)
    buffer.append([row])
    late = Feedback(row.experience_id, "grader", "reward", 0.5)
    assert buffer.add_feedback([late, late]) == 1
    assert buffer.add_feedback([late, Feedback(row.experience_id, "grader", "reward", 1.0)]) == 1
    rows = buffer.read("feedback").to_pylist()
    assert [r["value"] for r in rows] == [0.5, 1.0]
    assert {r["experience_digest"] for r in rows} == set(buffer.read("experiences")["digest"].to_pylist())


@pytest.mark.slow
def test_feedback_on_nothing_or_without_a_number_is_refused(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    with pytest.raises(RowError, match="about experience 'nobody', which is not stored"):
        buffer.add_feedback([Feedback("nobody", "ann", "score", 1.0)])
    with pytest.raises(RowError, match="has value nan"):
        buffer.add_feedback([Feedback(make_experience(0).experience_id, "ann", "score", float("nan"))])
    assert buffer.counts()["feedback"] == 0


@pytest.mark.slow
def test_payloads_are_stored_once_and_checked_when_read(buffer: Buffer) -> None:
    image = bytes(range(256)) * 400
    name = buffer.add_payload(image, "image/png")
    assert buffer.add_payload(image, "image/png") == name
    buffer.append([make_experience(0, payloads=(name,))])
    assert buffer.payload(name) == ("image/png", image)
    assert buffer.counts()["payloads"] == 1
    with pytest.raises(IntegrityError, match="has no payload 'x'"):
        buffer.payload("x")


@pytest.mark.slow
def test_side_tables_know_their_rows_after_a_restart(buffer: Buffer) -> None:
    name = buffer.add_payload(b"abc", "text/plain")
    buffer.close()
    with Buffer(buffer.root) as again:
        assert again.add_payload(b"abc", "text/plain") == name
        assert again.counts()["payloads"] == 1


@pytest.mark.slow
def test_rows_come_as_a_data_frame(buffer: Buffer) -> None:
    buffer.append([make_experience(number, reward=reward) for number, reward in enumerate([0.5, None, 1.0])])
    frame = buffer.to_pandas(columns=["seq", "reward", "token_ids"], where=Compare("seq", "lt", 2))
    assert frame["seq"].tolist() == [0, 1]
    assert frame["reward"].isna().tolist() == [False, True]
    assert frame["token_ids"][0].tolist() == [5, 6, 7, 8]
    assert len(buffer.to_pandas("tasks")) == 0
