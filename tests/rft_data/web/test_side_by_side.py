"""The rollouts of a group beside each other: turns together, and where their words differ."""

import html
import re
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.core.rows import Experience
from rft_data.web.app import make_app
from rft_data.web.differences import MOST_WORDS, Differences, Kind
from rft_data.web.subjects import Subjects
from tests.rft_data.conftest import make_experience
from tests.rft_data.web.test_guard import HOSTILE, elements

TEXT = st.lists(st.sampled_from(["a", "b", "c", " ", "\n", "  "])).map("".join) | st.text(max_size=30)


@pytest.mark.slow
@given(TEXT, TEXT)
def test_pieces_are_the_text_and_the_reference(reference: str, text: str) -> None:
    pieces = Differences().between(reference, text)
    assert "".join(piece.text for piece in pieces if piece.kind is not Kind.GONE) == text
    theirs = "".join(piece.text for piece in pieces if piece.kind is not Kind.OWN)
    assert theirs.split() == reference.split()


def test_only_what_differs_is_marked() -> None:
    found = Differences().between("the sum is 4 .\n", "the sum is five.")
    assert [(piece.kind, piece.text) for piece in found] == [
        (Kind.SAME, "the sum is "),
        (Kind.GONE, "4 .\n"),
        (Kind.OWN, "five."),
    ]
    assert [piece.kind for piece in Differences().between("a b c", "a b c")] == [Kind.SAME]


def test_comparing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "word " * 100_000
    start = time.process_time()
    pieces = Differences().between(long + "x", "another " + long)
    assert time.process_time() - start < 5
    assert "".join(piece.text for piece in pieces if piece.kind is not Kind.GONE) == "another " + long
    assert sum(len(piece.text.split()) for piece in pieces if piece.kind is Kind.GONE) <= MOST_WORDS
    monkeypatch.setattr("rft_data.web.differences._LIMIT_S", -1.0)
    none = Differences()
    assert [piece.kind for piece in none.between("a", "b")] == [Kind.SAME]
    assert none.skipped == 1


def rollout(member: int, turn: int, said: str, reward: float | None) -> Experience:
    return make_experience(
        10 * member + turn, experience_id=f"{member}-{turn}", member=member, turn=turn, completion_text=said,
        reward=reward,
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    place = tmp_path_factory.mktemp("group") / "buffer"
    with Buffer(place) as buffer:
        buffer.append(
            [
                rollout(0, 0, "go left then", None),
                rollout(1, 0, "go right then", None),
                rollout(0, 1, "stop here", 0.0),
                rollout(1, 1, "stop there", 1.0),
                rollout(2, 0, "go right then", None),
            ]
        )
    return TestClient(make_app(Subjects([str(place)]), None, "f"))


def columns(page: TestClient, query: str = "") -> list[str]:
    text = page.get(f"/s/buffer/groups/run/g0{query}").text
    return [html.unescape(one) for one in re.findall(r'<section class="member.*?</section>', text, re.DOTALL)]


@pytest.mark.slow
def test_turns_of_a_rollout_are_together(page: TestClient) -> None:
    assert [re.findall(r"row (\d+), turn (\d)", one) for one in columns(page)] == [
        [("0", "0"), ("2", "1")],
        [("1", "0"), ("3", "1")],
        [],
    ]
    assert "row 4" in columns(page)[2]


@pytest.mark.slow
def test_rollouts_are_compared_with_the_best_or_the_first(page: TestClient) -> None:
    first, best, third = columns(page)
    assert '<section class="member reference">' in best
    assert "<pre>go <del>right </del><mark>left </mark>then</pre>" in first
    assert "<pre>stop <del>there</del><mark>here</mark></pre>" in first
    assert "<mark>" not in best
    assert "<pre>go right then</pre>" in third
    first, best, third = columns(page, "?against=first")
    assert '<section class="member reference">' in first
    assert "<pre>go <del>left </del><mark>right </mark>then</pre>" in best
    assert "<mark>" not in "".join(columns(page, "?against=none"))
    assert page.get("/s/buffer/groups/run/g0?against=worst").status_code == 422


def test_very_many_rows_are_not_all_shown(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rft_data.web.side_by_side.MOST_TURNS", 3)
    assert len(columns(page)) == 2
    assert "2 more rows are not shown" in page.get("/s/buffer/groups/run/g0").text


@pytest.mark.slow
def test_texts_that_are_compared_act_on_nothing(tmp_path: Path) -> None:
    with Buffer(tmp_path / "buffer") as buffer:
        for number, text in enumerate(HOSTILE[:-1]):
            pair = (f"{text} same {text}", f"{text} same other words")
            buffer.append(
                [
                    make_experience(
                        2 * number + member,
                        experience_id=f"{number}-{member}",
                        group_id=f"g{number}",
                        member=member,
                        completion_text=said,
                    )
                    for member, said in enumerate(pair)
                ]
            )
    page = TestClient(make_app(Subjects([str(tmp_path / "buffer")]), None, "f"))
    for number, text in enumerate(HOSTILE[:-1]):
        found = elements(page.get(f"/s/buffer/groups/g{number}").text)
        tags = {element[0] for element in found.found}
        assert not tags & {"script", "svg", "iframe", "img"}, text
        assert {"mark", "del"} <= tags
