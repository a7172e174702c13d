"""What the page's author says of experiences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from fastapi import Form
from fastapi.responses import HTMLResponse, RedirectResponse

from rft_data.buffer import Buffer
from rft_data.core.errors import RowError
from rft_data.core.rows import Feedback, now
from rft_data.core.words import FeedbackKey
from rft_data.exchange.feedback import finite, storable
from rft_data.reading.lineage import find
from rft_data.web.choosing import next_pair, store_choice
from rft_data.web.page import Page, Route, Words


class FeedbackViews:
    """Scores, comments, and which of two is better."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def routes(self) -> Iterator[Route]:
        """Their addresses."""
        yield Route("/s/{key}/choose", self.choose)
        yield Route("/s/{key}/choose", self.chosen, "POST")
        yield Route("/s/{key}/rows/{seq}/say", self.say, "POST")

    def choose(self, key: str) -> HTMLResponse:
        """Two rollouts of a group, of which the author has not said which is better."""
        pair = next_pair(self._page.subjects.buffer(key), self._page.speaker())
        subject = self._page.subjects[key]
        return self._page.shown("choose.html", subject=subject, pair=pair)

    def chosen(
        self,
        key: str,
        left: Words,
        right: Words,
        answer: Annotated[Literal["a", "b", "s"], Form()],
        form_token: Words,
    ) -> RedirectResponse:
        """Store which of two rollouts is better: `a` the left one, `b` the right one, `s` neither."""
        author = self._page.speaker()
        self._page.check_form(form_token)
        with Buffer(self._page.subjects.buffer(key).location) as owned:
            store_choice(owned, author, left, right, answer)
        return RedirectResponse(f"/s/{key}/choose", 303)

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
        with Buffer(self._page.subjects.buffer(key).location) as owned:
            owned.add_feedback([said])
        return RedirectResponse(f"/s/{key}/rows/{seq}", 303)


def _score(text: str) -> float | None:
    """Raises: RowError when it is no finite number."""
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError as err:
        raise RowError(f"the score '{text}' is no number; give for example 1 or 0.5.") from err
    return finite(value, "the score")
