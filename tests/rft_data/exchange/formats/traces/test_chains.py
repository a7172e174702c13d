"""Logs of which each holds the whole history: one conversation grows over several traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from tests.rft_data.exchange.formats.logs import gen_ai, imported, otlp, span, stored

SYSTEM = {"role": "system", "content": "Be brief."}


def _asked(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


TALK = [SYSTEM, _asked("a"), _said("A"), _asked("b"), _said("B"), _asked("c"), _said("C")]


def _trace(end: int, talk: list[dict[str, Any]] = TALK, name: str = "", **more: Any) -> dict[str, Any]:
    """A trace of one call: what it says is message `end` of a conversation."""
    return span("s", {**gen_ai(talk[:end], talk[end]), **more}, end, trace=name or f"t{end}")


@pytest.mark.slow
def test_a_conversation_that_grows_over_traces_is_one_row(buffer: Buffer, tmp_path: Path) -> None:
    report = imported(buffer, tmp_path, [otlp(_trace(6)), otlp(_trace(2)), otlp(_trace(4))])
    assert (report.rows, report.stored) == (1, 1)
    [row] = stored(buffer)
    assert row["messages"] == [dict(sorted(m.items())) for m in TALK]
    assert row["prompt_messages"] == 2
    assert row["metadata"]["log"]["traces"] == ["t2", "t4", "t6"]


@pytest.mark.slow
def test_branches_and_equal_beginnings_are_rows_of_their_own(buffer: Buffer, tmp_path: Path) -> None:
    other = [*TALK[:3], _asked("z"), _said("Z")]
    again = [*TALK[:1], _asked("a"), _said("another")]
    imported(buffer, tmp_path, [otlp(_trace(2), _trace(4), _trace(4, other, "o"), _trace(2, again, "p"))])
    ends = sorted((row["messages"][-1]["content"], row["prompt_messages"]) for row in stored(buffer))
    assert ends == [("B", 2), ("Z", 4), ("another", 2)]


@pytest.mark.slow
def test_traces_of_sessions_keep_to_them(buffer: Buffer, tmp_path: Path) -> None:
    mine = {"gen_ai.conversation.id": "mine"}
    imported(buffer, tmp_path, [otlp(_trace(2, **mine), _trace(4), _trace(6, **mine))])
    ends = sorted((row["messages"][-1]["content"], row["prompt_messages"]) for row in stored(buffer))
    assert ends == [("B", 4), ("C", 2)]
