"""Stores preference pairs that operators found: `preferred_over` of annotations as `preferences` rows.

`formats.mining` has the rule for what makes two rows a pair: one prompt, two different answers.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.codec import to_experiences
from rft_data.core.errors import RowError
from rft_data.core.rows import PreferencePair
from rft_data.core.words import Verdict
from rft_data.exchange.formats.mining import mined_pair

log = logging.getLogger(__name__)

_STAT = "preferred_over"
_logged: set[str] = set()
"""Reasons of refused pairs that this process has logged."""


@dataclass(frozen=True, slots=True)
class StoredPairs:
    """Counts of the pairs that annotations name."""

    found: int
    """Pairs named by rows that were kept."""
    stored: int
    """How many of them were not stored before."""
    refused: tuple[str, ...]
    """Reasons why others are no pairs, one for each."""


def store_pairs(buffer: Buffer, rows: pa.Table, annotations: pa.Table) -> StoredPairs:
    """Write the pairs of `preference_pair_mapper` to the table `preferences`; a pair is stored once.

    Their scores are the rewards compared: `shaped_reward` where the operators set one, else `reward`. Reasons
    why pairs are refused are logged, each once in a process.
    Args:
        rows: the experiences that were judged, with both rows of every pair.
        annotations: their verdicts, in any order. Pairs with a row that a later operator
            dropped are left out.
    """
    if not pc.any(pc.match_substring(annotations["stats"], _STAT)).as_py():
        return StoredPairs(0, 0, ())
    kept: dict[str, list[str]] = {}
    shaped: dict[str, float | None] = {}
    names = ("experience_id", "verdict", "stats", "shaped_reward")
    for experience_id, verdict, stats, score in zip(
        *(annotations[n].to_pylist() for n in names), strict=True
    ):
        if verdict == Verdict.KEPT:
            kept[experience_id] = json.loads(stats).get(_STAT) or []
            shaped[experience_id] = score
    named = [(better, worse) for better, others in kept.items() for worse in others if worse in kept]
    wanted = {experience_id for pair in named for experience_id in pair}
    places = [i for i, name in enumerate(rows["experience_id"].to_pylist()) if name in wanted]
    by_id = {row.experience_id: row for row in to_experiences(rows.take(pa.array(places, pa.int64())))}
    made = [_scored(mined_pair(by_id[better], by_id[worse]), shaped) for better, worse in named]
    pairs = [pair for pair in made if isinstance(pair, PreferencePair)]
    refused = tuple(str(pair) for pair in made if isinstance(pair, RowError))
    _warn(refused)
    return StoredPairs(len(named), buffer.add_preferences(pairs) if pairs else 0, refused)


def _scored(pair: PreferencePair | RowError, shaped: Mapping[str, float | None]) -> PreferencePair | RowError:
    """The pair with the rewards that were compared."""
    if isinstance(pair, RowError):
        return pair
    better, worse = shaped[pair.chosen_experience_id or ""], shaped[pair.rejected_experience_id or ""]
    return replace(
        pair,
        chosen_score=pair.chosen_score if better is None else better,
        rejected_score=pair.rejected_score if worse is None else worse,
    )


def _warn(refused: Sequence[str]) -> None:
    for why, count in Counter(refused).items():
        if why not in _logged:
            _logged.add(why)
            log.warning(
                "%d preference pairs that operators found are not stored: %s; logged once for each reason",
                count,
                why,
            )
