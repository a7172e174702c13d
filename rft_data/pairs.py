"""Preference pairs that operators found, stored: `preferred_over` of annotations becomes `preferences` rows.

What makes two rows a pair at all (one prompt, answers that differ) is `formats.mining`'s rule.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.codec import to_experiences
from rft_data.errors import RowError
from rft_data.formats.mining import pair_of
from rft_data.rows import PreferencePair

_STAT = "preferred_over"


@dataclass(frozen=True, slots=True)
class StoredPairs:
    """What became of the pairs that the annotations name."""

    found: int
    """Pairs named by rows that were kept."""
    stored: int
    """Of these, pairs that were not stored before."""
    refused: tuple[str, ...]
    """Why others are no pairs, one for each."""


def store_pairs(buffer: Buffer, rows: pa.Table, annotations: pa.Table) -> StoredPairs:
    """Write the pairs of `preference_pair_mapper` to the `preferences` table; a pair is stored once.

    Args:
        rows: EXPERIENCES rows that were judged; both rows of a pair are among them.
        annotations: their verdicts (schema.ANNOTATIONS), in any order. Pairs of rows that a later
            operator dropped are left out.
    """
    if not pc.any(pc.match_substring(annotations["stats"], _STAT)).as_py():
        return StoredPairs(0, 0, ())
    kept: dict[str, list[str]] = {}
    columns = (annotations[name].to_pylist() for name in ("experience_id", "verdict", "stats"))
    for experience_id, verdict, stats in zip(*columns, strict=True):
        if verdict == "kept":
            kept[experience_id] = json.loads(stats).get(_STAT) or []
    named = [(better, worse) for better, others in kept.items() for worse in others if worse in kept]
    wanted = {experience_id for pair in named for experience_id in pair}
    places = [i for i, name in enumerate(rows["experience_id"].to_pylist()) if name in wanted]
    by_id = {row.experience_id: row for row in to_experiences(rows.take(pa.array(places, pa.int64())))}
    made = [pair_of(by_id[better], by_id[worse]) for better, worse in named]
    pairs = [pair for pair in made if isinstance(pair, PreferencePair)]
    refused = tuple(str(pair) for pair in made if isinstance(pair, RowError))
    return StoredPairs(len(named), buffer.add_preferences(pairs) if pairs else 0, refused)
