"""Which preference pairs an offline stage trains on, stored or mined, and which are held out.

Nothing is tokenised here (see `answers.py`), and torch is not needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.codec import to_preferences
from rft_data.core.errors import RowError, TrainingError
from rft_data.core.filters import And, Compare, Filter, IsNull, Not, parse_text
from rft_data.core.reader import BufferReader
from rft_data.core.rows import Message, PreferencePair
from rft_data.core.schema import EXPERIENCES, PREFERENCES
from rft_data.core.words import PairsFrom, PairSource
from rft_data.exchange.formats.mining import mined_pairs
from rft_data.exchange.formats.mining import most_pairs as minable
from rft_data.exchange.standing import Excluded, excluded
from trainers.offline.heldout_prompts import HeldoutPrompts
from trainers.offline.stored_rows import EXCLUDED, TAKEN_TOGETHER, listed_reasons


@dataclass(frozen=True, slots=True)
class PairChoice:
    """A stage's choice of preference pairs."""

    pairs: PairsFrom = "stored"
    """`stored` (the table `preferences`) or `mined` (each group's best row against its worst)."""
    run: str | None = None
    """Mined: only this run's groups."""
    where: str | None = None
    """A filter, as text; over PREFERENCES where pairs are stored, over EXPERIENCES where they are mined."""
    margin: float = 0.0
    """Mined: the rewards must differ by more than this."""


@dataclass(frozen=True, slots=True)
class ChosenPairs:
    """The pairs of a choice, in the order found."""

    pairs: Sequence[PreferencePair]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many were left out, by reason."""


def chosen_pairs(
    store: BufferReader, choice: PairChoice, heldout: float = 0.0, *, inside: bool = False
) -> ChosenPairs:
    """The pairs of a choice whose prompts are not held out; with `inside`, those whose prompts are.

    Args: store: a buffer, or a client of its hub. heldout: share of prompts, by content hash.
    Raises: TrainingError with the numbers that the buffer has when no pair is left; RecipeError for a bad
    filter.
    """
    left_out: Counter[str] = Counter()
    pairs: list[PreferencePair] = []
    held, unwanted = HeldoutPrompts(store, heldout), excluded(store)
    for pair in _found_pairs(store, choice):
        if isinstance(pair, RowError):
            left_out[str(pair)] += 1
        elif _is_excluded(pair, unwanted):
            left_out[EXCLUDED] += 1
        elif held.has(pair.task_id, pair_prompt(pair)) != inside:
            left_out["the prompt is held out" if not inside else "the prompt is trained on"] += 1
        else:
            pairs.append(pair)
    if not pairs and inside and left_out["the prompt is trained on"]:
        raise TrainingError(
            f"no preference pair is held out{listed_reasons(left_out)}: raise 'heldout.fraction', which is "
            f"{heldout:g}, or bring in pairs of more prompts."
        )
    if not pairs:
        raise TrainingError(_no_pairs(store, choice, left_out))
    return ChosenPairs(pairs, dict(left_out))


def _is_excluded(pair: PreferencePair, unwanted: Excluded) -> bool:
    better, worse = pair.chosen_experience_id or "", pair.rejected_experience_id or ""
    taken_back = pair.source == PairSource.HUMAN and (better, worse, pair.author) in unwanted.choices
    return taken_back or not unwanted.rows.isdisjoint((better, worse))


def pair_filter(choice: PairChoice) -> Filter | None:
    """The choice as a filter over the table that its pairs come from; None where it takes every pair.

    Raises: RecipeError when `where` is not valid.
    """
    mined = choice.pairs == "mined"
    schema = EXPERIENCES if mined else PREFERENCES
    parts: list[Filter] = [] if choice.where is None else [parse_text(choice.where, schema)]
    if mined and choice.run is not None:
        parts.append(Compare("run_id", "eq", choice.run))
    return And(tuple(parts)) if parts else None


def _found_pairs(store: BufferReader, choice: PairChoice) -> Iterator[PreferencePair | RowError]:
    where = pair_filter(choice)
    if choice.pairs == "mined":
        yield from mined_pairs(store, where, choice.margin)
        return
    for batch in store.batches("preferences", where=where):
        yield from to_preferences(pa.Table.from_batches([batch]))


def require_pairs(store: BufferReader, choice: PairChoice) -> None:
    """Check that the filter passes a stored pair, or a group to mine one from; no text is read.

    Raises: TrainingError with the numbers that the buffer has, where there is none.
    """
    if choice.pairs == "mined":
        found = minable(store, pair_filter(choice), choice.margin)
    else:
        found = store.read("preferences", ["preference_id"], pair_filter(choice), 1).num_rows
    if not found:
        raise TrainingError(_no_pairs(store, choice, {}))


def most_pairs(store: BufferReader, choice: PairChoice) -> int:
    """How many pairs a choice has at most: prompts that are held out are still in, and what no pair can be
    mined from for its text.

    Raises: RecipeError when `where` is not valid.
    """
    where = pair_filter(choice)
    if choice.pairs == "mined":
        return minable(store, where, choice.margin)
    return len(store.read("preferences", ["preference_id"], where))


def sampled_rows(store: BufferReader, pairs: Sequence[PreferencePair]) -> Iterator[pa.Table]:
    """The stored experiences that pairs came from, at most TAKEN_TOGETHER rows at a time."""
    halves = (name for pair in pairs for name in (pair.chosen_experience_id, pair.rejected_experience_id))
    wanted = pa.array(sorted({name for name in halves if name}), pa.string())
    if not len(wanted):
        return
    seqs: list[int] = []
    for batch in store.batches("experiences", ["seq", "experience_id"]):
        seqs += batch.filter(pc.is_in(batch["experience_id"], value_set=wanted))["seq"].to_pylist()
    for start in range(0, len(seqs), TAKEN_TOGETHER):
        yield store.take(seqs[start : start + TAKEN_TOGETHER])


def pair_prompt(pair: PreferencePair) -> list[Message]:
    """The prompt of a pair; where both answers contain it, the messages that both begin with."""
    return list(pair.messages) or list(pair.chosen[: shared_length(pair.chosen, pair.rejected)])


def shared_length(one: Sequence[object], other: Sequence[object]) -> int:
    """The number of equal items at the beginning of two sequences."""
    differ = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def _no_pairs(store: BufferReader, choice: PairChoice, left_out: Mapping[str, int]) -> str:
    counts = store.counts()
    there = f"{counts['preferences']} stored pairs and {counts['experiences']} experiences"
    if choice.pairs == "mined":
        scored = store.read("experiences", ["seq"], Not(IsNull("reward"))).num_rows
        return (
            f"no preference pair could be mined{listed_reasons(left_out)}; the buffer has {there}, of which "
            f"{scored} have a reward. A pair "
            "needs a group with two answers to one prompt and rewards that differ by more than 'margin': "
            "loosen 'where', 'run' and 'margin', score the rows (rft data run), or use 'pairs: stored'."
        )
    return (
        f"there is no stored preference pair to use{listed_reasons(left_out)}; the buffer has {there}. Pairs "
        "are made by rft data annotate --pairwise, rft data label-studio, rft buffer import (columns "
        "'chosen' and 'rejected', or yours by options of these names; in a recipe's import 'chosen: COLUMN' "
        "and 'rejected: COLUMN') and the operator preference_pair_mapper; 'pairs: mined' takes them from "
        "groups."
    )
