"""Experiences by words and by meaning, best first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rft_data.buffer import Buffer
from rft_data.core.filters import And, Compare, Filter, In
from rft_data.core.scratch import on_hub
from rft_data.reading.search import Hit, embedded_by, search_text, similar, unindexed
from rft_data.reading.tags import frontier
from rft_data.web.listing import PAGE, ShownRow, numbered_rows
from rft_data.web.row_choice import WINDOW, Choice
from rft_data.web.text_vectors import vector

_NO_EMBEDDER = (
    "No model is here to search for a text by its meaning: the run's recipe must name the folder of a "
    "sentence-transformers model by which rows of this buffer were embedded (`rft buffer search --model`). "
    "Open a row for *more like this*."
)
_NO_FILES = (
    "This page reads the rows of a hub, which does not hand out indexes of words and vectors: they are in "
    "the buffer's own folder or URL."
)
_NEAREST = 1_000
"""Nearest rows of all, among which a filter chooses."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best rows of a search."""

    rows: list[ShownRow]
    """The columns of COLUMNS, `judgements`, and `key`: how well the row fits; larger is better."""
    note: str
    """Rows that were not looked at, or why nothing could be searched; empty: all was."""


def by_words(buffer: Buffer, words: str, choice: Choice, most: int = PAGE) -> Found:
    """The chosen rows that hold any of some words, best first."""
    if on_hub(buffer.location):
        return Found([], _NO_FILES)
    missing = unindexed(buffer)
    command = f"rft buffer search {shlex.quote(buffer.location)} {shlex.quote(words)} --index"
    if missing is None:
        return Found([], f"This buffer has no index of words yet; `{command}` makes one.")
    newest = missing > WINDOW
    hits = search_text(buffer, words, most, where=_within_reach(buffer, choice), indexed_only=newest)
    note = f"{missing:,} newer rows are not in the index of words; `{command}` adds them." if newest else ""
    return Found(_shown(buffer, hits, choice), note)


def by_meaning(buffer: Buffer, seq: int, model: str, choice: Choice, most: int = PAGE) -> Found:
    """The chosen rows whose completions mean most nearly what one row's does, best first.

    Args: model: whose vectors are compared; empty: the first of those that embedded the row.
    """
    if on_hub(buffer.location):
        return Found([], _NO_FILES)
    models = embedded_by(buffer, seq)
    if not models or (model and model not in models):
        known = f" It has vectors by {', '.join(models)}." if models else ""
        command = f"rft buffer search {shlex.quote(buffer.location)} --like {seq} --model MODEL --index"
        wanted = f"vector by '{model}'" if model else "vector"
        return Found([], f"Row {seq} has no {wanted} yet; `{command}` makes those of a model.{known}")
    model = model or models[0]
    hits = similar(buffer, seq, most if choice.everything else _NEAREST, model=model)
    rows = _shown(buffer, hits, choice)
    others = f" (or by {', '.join(models[1:])})" if len(models) > 1 else ""
    note = f"By the vectors of {model}{others}."
    if not choice.everything:
        note += f" The filter chose among the {_NEAREST:,} nearest rows of all."
    return Found(rows[:most], note)


def by_text(
    buffer: Buffer, text: str, models: Sequence[str], asked: str, choice: Choice, most: int = PAGE
) -> Found:
    """The chosen rows whose completions mean most nearly what a text does, best first.

    Args: models: by which a text can be searched for here. asked: which one; empty: the first.
    Raises: what `meaning.vector` raises.
    """
    if not models or (asked and asked not in models):
        return Found([], _NO_EMBEDDER)
    model = asked or models[0]
    found = vector(model, text)
    nearest = most if choice.everything else _NEAREST
    hits = similar(buffer, text, nearest, model=lambda texts: np.stack([found] * len(texts)), name=model)
    note = f"By the vectors of {model}."
    if not choice.everything:
        note += f" The filter chose among the {_NEAREST:,} nearest rows of all."
    return Found(_shown(buffer, hits, choice)[:most], note)


def _within_reach(buffer: Buffer, choice: Choice) -> Filter | None:
    """The filter, over so many of the newest rows as it may look at."""
    if choice.where is None:
        return None
    bottom = frontier(buffer) - choice.reach()
    return And((Compare("seq", "ge", bottom), choice.where)) if bottom > 0 else choice.where


def _shown(buffer: Buffer, hits: list[Hit], choice: Choice) -> list[ShownRow]:
    """The rows of the hits that the choice lets through."""
    scores = {hit.seq: hit.score for hit in hits}
    if scores and not choice.everything:
        own: Filter = In("seq", tuple(scores))
        narrowed = Choice(own if choice.where is None else And((own, choice.where)), choice.verdict)
        kept = narrowed.read(buffer, ["seq"], min(scores), max(scores) + 1)["seq"].to_pylist()
        scores = {seq: score for seq, score in scores.items() if seq in set(kept)}
    rows = numbered_rows(buffer, list(scores))
    for row in rows:
        row["key"] = scores[row["seq"]]
    return rows
