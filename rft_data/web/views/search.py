"""The table of experiences: narrowed, searched, ordered, and as a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, BinaryIO

from fastapi import Query
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.words import FinishReason, RowSource
from rft_data.web.downloads import FORMATS, MOST_ROWS, AskedFile, command, table_file
from rft_data.web.listing import listing
from rft_data.web.page import Route, View
from rft_data.web.reward_spread import histogram
from rft_data.web.row_order import Order, ordered
from rft_data.web.searching import by_meaning, by_text, by_words
from rft_data.web.table_query import Asked, Narrowed
from rft_data.web.text_vectors import embedders

_PART_BYTES = 1 << 18


class SearchViews(View):
    """Experiences that a search finds."""

    def routes(self) -> Iterator[Route]:
        yield Route("/s/{key}/experiences", self.experiences)
        yield Route("/s/{key}/experiences/narrow", self.narrow)
        yield Route("/s/{key}/experiences/file", self.file)

    def experiences(self, key: str, asked: Annotated[Asked, Query()]) -> HTMLResponse:
        """Experiences as a table."""
        buffer = self._page.subjects.buffer(key)
        fixed: dict[str, Any] = {
            "subject": self._page.subjects[key],
            "asked": asked,
            "orders": list(Order),
            "sources": list(RowSource),
            "ends": list(FinishReason),
            "embedders": embedders(buffer, self._page.subjects[key].run_dir),
        }
        try:
            choice = asked.choice
        except RecipeError as err:
            return self._page.shown("experiences.html", 400, wrong=str(err), **fixed)
        plain = asked.first_page and not asked.words and not asked.means and asked.like is None
        return self._page.shown(
            "experiences.html",
            wrong="",
            spread=histogram(buffer, choice, asked.where) if plain else None,
            formats=FORMATS,
            most=MOST_ROWS,
            command=command(buffer, asked),
            **_table(buffer, asked, fixed["embedders"]),
            **fixed,
        )

    def narrow(self, key: str, form: Annotated[Narrowed, Query()]) -> RedirectResponse:
        """The permanent link of what the form of common filters asks for."""
        return RedirectResponse(f"/s/{self._page.subjects[key].key}/experiences{form.query()}", 303)

    def file(self, key: str, asked: Annotated[AskedFile, Query()]) -> StreamingResponse:
        """Rows that the table shows, as a file."""
        buffer = self._page.subjects.buffer(key)
        with TemporaryDirectory(prefix="rft-view-") as folder:
            models = embedders(buffer, self._page.subjects[key].run_dir) if asked.by_text else ()
            path = table_file(buffer, asked, Path(folder), models)
            file = path.open("rb")  # read after its name is gone: nothing is left, whoever hangs up
        headers = {
            "content-disposition": f'attachment; filename="{path.name}"',
            "content-length": str(os.fstat(file.fileno()).st_size),
        }
        kind = "text/csv" if asked.format == "csv" else "application/jsonl"
        return StreamingResponse(_parts(file), media_type=kind, headers=headers)


def _parts(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while part := file.read(_PART_BYTES):
            yield part


def _table(buffer: Buffer, asked: Asked, embedders: Sequence[str]) -> dict[str, object]:
    """The rows of a page, the query of the next one, and what to say about them."""
    choice = asked.choice
    if asked.by_text:
        found = by_text(buffer, asked.means, embedders, asked.model, choice)
        return {"rows": found.rows, "next": "", "note": found.note, "by": "fits"}
    if asked.words or asked.like is not None:
        found = (
            by_words(buffer, asked.words, choice)
            if asked.like is None
            else by_meaning(buffer, asked.like, asked.model, choice)
        )
        return {"rows": found.rows, "next": "", "note": found.note, "by": "fits"}
    if asked.order is Order.NEWEST:
        page = listing(buffer, choice, asked.below)
        note = "" if page.rows else f"none down to row {page.searched_to}"
        more = "" if page.older is None else asked.link(below=page.older)
        return {"rows": page.rows, "next": more, "note": note, "by": ""}
    part = ordered(buffer, choice, asked.order, asked.after)
    notes = [f"{part.without:,} rows have no value to go by and are left out."] if part.without else []
    notes += [f"Of the newest {part.newest:,} rows."] if part.newest is not None else []
    more = "" if part.after is None else asked.link(after=part.after)
    return {"rows": part.rows, "next": more, "note": " ".join(notes), "by": str(asked.order)}
