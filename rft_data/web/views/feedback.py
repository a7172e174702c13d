"""Statements of the page's author about experiences."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal

from fastapi import Form, Query
from fastapi.responses import HTMLResponse, RedirectResponse

from rft_data.core.errors import RowError
from rft_data.core.rows import Feedback, now
from rft_data.core.words import FeedbackKey
from rft_data.exchange.feedback import finite, storable
from rft_data.reading.lineage import find
from rft_data.web.page import Route, View, Words
from rft_data.web.pair_queue import Queue

MOST_PEOPLE = 9


class FeedbackViews(View):
    """Scores, comments, and which of two is better."""

    def routes(self) -> Iterator[Route]:
        yield Route("/s/{key}/choose", self.choose)
        yield Route("/s/{key}/choose", self.chosen, "POST")
        yield Route("/s/{key}/choose/undo", self.undo, "POST")
        yield Route("/s/{key}/rows/{seq}/say", self.say, "POST")

    def choose(self, key: str, people: Annotated[int, Query(ge=1, le=MOST_PEOPLE)] = 1) -> HTMLResponse:
        """Two rollouts of a group, for which no author has said yet which is better.

        Args: people: how many are to say it of each pair, for their agreement.
        """
        pair = self._queue(key, people).next_pair(self._page.speaker())
        subject = self._page.subjects[key]
        return self._page.shown("choose.html", subject=subject, pair=pair, people=people)

    def chosen(
        self,
        key: str,
        left: Words,
        right: Words,
        answer: Annotated[Literal["a", "b", "s"], Form()],
        form_token: Words,
        people: Annotated[int, Form(ge=1, le=MOST_PEOPLE)] = 1,
    ) -> RedirectResponse:
        """Store which of two rollouts is better: `a` the left one, `b` the right one, `s` neither."""
        author = self._page.speaker()
        self._page.check_form(form_token)
        self._queue(key, people).answer(author, left, right, answer)
        return RedirectResponse(_queue_link(key, people), 303)

    def undo(
        self, key: str, form_token: Words, people: Annotated[int, Form(ge=1, le=MOST_PEOPLE)] = 1
    ) -> RedirectResponse:
        """Take the author's newest answer back; its pair is asked again."""
        author = self._page.speaker()
        self._page.check_form(form_token)
        self._queue(key, people).undo(author)
        return RedirectResponse(_queue_link(key, people), 303)

    def _queue(self, key: str, people: int) -> Queue:
        subjects = self._page.subjects
        return Queue(subjects.buffer(key), partial(self._page.write, key), subjects.claims(key), people)

    def say(
        self,
        key: str,
        seq: int,
        form_token: Words,
        value: Annotated[str, Form(max_length=40)] = "",
        text: Words = "",
    ) -> RedirectResponse:
        """Store a score, a comment or both about one experience, as feedback of this page's author."""
        author = self._page.speaker()
        self._page.check_form(form_token)
        experience = find(self._page.subjects.buffer(key), seq)["experience_id"]
        said = Feedback(experience, author, FeedbackKey.SCORE, _score(value), text.strip() or None, now())
        if said.value is None and said.text is None:
            raise RowError("nothing was said: give a score, a comment or both.")
        storable(text, "comment")
        self._page.write(key, lambda writer: writer.say([said]))
        return RedirectResponse(f"/s/{key}/rows/{seq}", 303)


def _queue_link(key: str, people: int) -> str:
    return f"/s/{key}/choose" + (f"?people={people}" if people > 1 else "")


def _score(text: str) -> float | None:
    """Raises: RowError when it is no finite number."""
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError as err:
        raise RowError(f"the score '{text}' is no number; give for example 1 or 0.5.") from err
    return finite(value, "the score")
