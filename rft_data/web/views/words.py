"""Feedback on one row: what a person may say, what was said, and how it is withdrawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from fastapi import Form
from fastapi.responses import HTMLResponse, RedirectResponse

from rft_data.core.errors import RowError
from rft_data.core.filters import And, Compare
from rft_data.core.rows import Feedback, now
from rft_data.core.words import FeedbackKey
from rft_data.exchange.annotate.corrections import correctable
from rft_data.exchange.annotate.subjects import stored_experiences
from rft_data.exchange.feedback import storable, withdrawal
from rft_data.exchange.standing import TAG_PREFIX
from rft_data.reading.lineage import find
from rft_data.web.page import Route, Text, View, Words
from rft_data.web.statements import newest_said
from rft_data.web.writing import Writer

_TAG_CHARACTERS = 100
LongText = Annotated[str, Form(max_length=100_000)]
Act = Literal["up", "down", "tag", "correct", "quarantine", "readmit", "retire", "bring_back"]
_PLAIN: dict[str, tuple[FeedbackKey, float]] = {
    "up": (FeedbackKey.THUMB, 1.0),
    "down": (FeedbackKey.THUMB, 0.0),
    "quarantine": (FeedbackKey.QUARANTINE, 1.0),
    "readmit": (FeedbackKey.QUARANTINE, 0.0),
    "retire": (FeedbackKey.RETIRE_TASK, 1.0),
    "bring_back": (FeedbackKey.RETIRE_TASK, 0.0),
}
"""Key and value of acts whose text is a reason."""
_RATING = ("up", "down", "tag")
"""Acts of everybody; the others decide what is trained on."""


class WordViews(View):
    """Thumbs, tags, corrections, quarantine, tasks; and the list of all of it."""

    def routes(self) -> Iterator[Route]:
        yield Route("/s/{key}/said", self.said)
        yield Route("/s/{key}/said/back", self.take_back, "POST")
        yield Route("/s/{key}/rows/{seq}/word", self.word, "POST")

    def said(self, key: str, author: Text = "", about: Text = "", by: Text = "") -> HTMLResponse:
        """People's words, newest first. Args: author, about: only his, only under this key; by: author."""
        subject = self._page.subjects[key]
        found = newest_said(self._page.subjects.buffer(key), subject, author, about)
        lines = sorted(found.lines, key=lambda line: line.word.author) if by == "author" else found.lines
        return self._page.shown(
            "said.html", subject=subject, said=found, lines=lines, of_author=author, about=about
        )

    def word(
        self, key: str, seq: int, act: Annotated[Act, Form()], form_token: Words, text: LongText = ""
    ) -> RedirectResponse:
        """Store one act about one row as feedback of this page's author."""
        author = self._page.speaker() if act in _RATING else self._page.curator()
        self._page.check_form(form_token)
        storable(text, "the text")
        buffer = self._page.subjects.buffer(key)
        experience = find(buffer, seq)["experience_id"]
        word = _feedback(act, experience, author, text.strip())
        if act == "correct":
            row = stored_experiences(buffer, [experience])[experience]
            if not correctable(row.messages[row.prompt_messages :]):
                raise RowError("this row ends with no text of the assistant, so there is none to correct.")
            if word.text == row.messages[-1]["content"]:
                raise RowError("nothing was corrected: the text is the row's own.")

        def store(writer: Writer) -> None:
            writer.say([word])
            if act == "correct":
                writer.correct()

        self._page.write(key, store)
        return RedirectResponse(f"/s/{key}/rows/{seq}", 303)

    def take_back(
        self, key: str, experience: Words, about: Words, form_token: Words, beside: Words = ""
    ) -> RedirectResponse:
        """Withdraw what this page's author said of an experience under a key; nothing is erased.

        Args: beside: of a choice, the other experience.
        """
        author = self._page.speaker()
        self._page.check_form(form_token)
        mine = And(
            (
                Compare("experience_id", "eq", experience),
                Compare("author", "eq", author),
                Compare("key", "eq", about),
            )
        )

        def store(writer: Writer) -> None:
            earlier = writer.store.read("feedback", ["feedback_id"], mine).num_rows
            if not earlier:
                raise RowError(f"'{author}' said nothing of '{experience}' under '{about}'.")
            writer.say([withdrawal(Feedback(experience, author, about, text=beside), earlier)])

        self._page.write(key, store)
        return RedirectResponse(f"/s/{key}/said", 303)


def _feedback(act: Act, experience: str, author: str, text: str) -> Feedback:
    """The act as a row of feedback. Raises: RowError for a tag or a correction that says nothing."""
    if act == "tag":
        if not text or not text.isprintable() or len(text) > _TAG_CHARACTERS:
            raise RowError(f"a tag is a name of 1 to {_TAG_CHARACTERS} printable characters.")
        return Feedback(experience, author, TAG_PREFIX + text, 1.0, None, now())
    if act == "correct":
        if not text:
            raise RowError("the corrected answer is empty; write what the answer should have been.")
        return Feedback(experience, author, FeedbackKey.EDIT, None, text, now())
    about, value = _PLAIN[act]
    return Feedback(experience, author, about, value, text or None, now())
