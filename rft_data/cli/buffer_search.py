"""Text and vector search for `rft buffer search`."""

from __future__ import annotations

from dataclasses import dataclass

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.filters import Filter, In
from rft_data.reading.search import Hit, embed, fuse, index_text, search_text, similar

_COLUMNS = ["seq", "experience_id", "reward", "completion_text"]
_DEEPER = 5
"""Each ranking of a hybrid search goes so many times deeper than what is shown."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A search as it was typed."""

    text: str | None
    like: int | None
    model: str | None
    hybrid: bool
    k: int


def search_rows(
    buffer: Buffer, wanted: Wanted, where: Filter | None, *, index: bool
) -> list[dict[str, object]]:
    """Experiences found, best first: seq, score, experience_id, reward, completion_text.

    Raises: RecipeError if the options do not go together.
    """
    if (wanted.text is None) == (wanted.like is None):
        raise RecipeError("give either a text to search for, or --like and a row number.")
    if wanted.model is None and (wanted.like is not None or wanted.hybrid):
        raise RecipeError(
            "--like and --hybrid search by meaning; name the --model the buffer was embedded with."
        )
    if wanted.hybrid and wanted.text is None:
        raise RecipeError("--hybrid needs a text.")
    if index:
        index_text(buffer)
        if wanted.model is not None:
            embed(buffer, wanted.model)
    hits = _hits(buffer, wanted, where)
    known = buffer.read("experiences", ["seq"], In("seq", tuple(hit.seq for hit in hits)))
    rows = buffer.take(known.column("seq").to_pylist()).select(_COLUMNS).to_pylist()  # compares digests
    by_seq = {row["seq"]: row for row in rows}
    return [{"score": hit.score, **by_seq[hit.seq]} for hit in hits if hit.seq in by_seq]


def _hits(buffer: Buffer, wanted: Wanted, where: Filter | None) -> list[Hit]:
    depth = wanted.k * _DEEPER if wanted.hybrid else wanted.k
    rankings = []
    if wanted.model is not None:
        query = wanted.like if wanted.text is None else wanted.text
        rankings.append(similar(buffer, query or 0, depth, model=wanted.model, where=where))
    if wanted.text is not None and (wanted.model is None or wanted.hybrid):
        rankings.append(search_text(buffer, wanted.text, depth, where=where))
    return fuse(rankings, wanted.k) if wanted.hybrid else rankings[0]
