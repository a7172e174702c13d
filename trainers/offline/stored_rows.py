"""Which stored experiences an offline stage trains on, and which prompts are held out.

Two passes over the buffer: the first reads a few columns and chooses, the second reads the chosen rows and
checks their digests. Nothing is tokenised here (see `answers.py`), and torch is not needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.codec import from_table
from rft_data.core.effective_reward import ShapedRewards
from rft_data.core.errors import TrainingError
from rft_data.core.filters import And, Compare, Filter, In, IsNull, Not, parse_text
from rft_data.core.reader import BufferReader
from rft_data.core.rows import Message
from rft_data.core.schema import EXPERIENCES
from rft_data.core.words import MEASURING_SOURCES, TRAINABLE_SOURCES
from rft_data.exchange.feedback import feedback_about, fold
from rft_data.exchange.standing import excluded
from trainers.offline.heldout_prompts import HeldoutPrompts

_CHOOSING = ("seq", "experience_id", "group_id", "reward")
"""Columns by which rows are chosen."""
TAKEN_TOGETHER = 512
"""Rows read at a time, at most."""
EXCLUDED = "a person put it in quarantine, or took it back"
"""Reason for leaving out examples that `exchange.standing.excluded` names."""


@dataclass(frozen=True, slots=True)
class RowChoice:
    """A stage's choice of experiences."""

    run: str | None = None
    """Only rows of this run; None: of every run."""
    sources: Sequence[str] = TRAINABLE_SOURCES
    where: str | None = None
    """A filter over EXPERIENCES, as text."""
    min_reward: float | None = None
    """Only rows whose score is at least this; rows without a score are then left out."""
    best_of: int | None = None
    """Only the best so many rows of each group, by score; of equal rows those stored first."""
    feedback: str | None = None
    """A key of `feedback`: the newest value under it is the row's score; without one its reward is."""


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The experiences of a choice, in the order stored."""

    table: pa.Table
    """EXPERIENCES rows."""
    scores: npt.NDArray[np.float64]
    """One a row; NaN where there is neither feedback nor a reward."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many rows were left out, by reason."""


def chosen_rows(store: BufferReader, choice: RowChoice, heldout: float = 0.0) -> ChosenRows:
    """The experiences of a choice whose prompts are not held out.

    Args: store: a buffer, or a client of its hub. heldout: share of prompts, by content hash.
    Raises: TrainingError with the numbers that the buffer has when no row is left; RecipeError for a bad
    filter.
    """
    found = _read(store, _CHOOSING, row_filter(choice))
    found, unwanted = _without_excluded(store, found)
    scores = _scores(store, choice, found)
    kept, left_out = _selected(choice, found, scores)
    left_out[EXCLUDED] = unwanted
    held = HeldoutPrompts(store, heldout)
    parts, kept_scores = [EXPERIENCES.empty_table()], [np.zeros(0)]
    for start in range(0, len(kept), TAKEN_TOGETHER):
        places = kept[start : start + TAKEN_TOGETHER]
        rows = store.take(np.asarray(found["seq"])[places].tolist())
        is_text = np.asarray(pc.fill_null(pc.list_value_length(rows["payloads"]), 0)) == 0
        left_out["it shows images or has other payloads"] += int((~is_text).sum())
        rows, places = rows.filter(pa.array(is_text)), places[is_text]
        inside = np.array([not held.has(*asked) for asked in _asked(rows)], bool)
        left_out["the prompt is held out"] += int((~inside).sum())
        parts.append(rows.filter(pa.array(inside)))
        kept_scores.append(scores[places][inside])
    table = pa.concat_tables(parts)
    if table.num_rows == 0:
        raise TrainingError(_no_rows(store, choice, found.num_rows, +left_out))
    return ChosenRows(table, np.concatenate(kept_scores), dict(+left_out))


def most_rows(store: BufferReader, choice: RowChoice) -> int:
    """How many rows a choice has at most: prompts that are held out, and rows with images, are still in.

    Raises: RecipeError for a bad filter.
    """
    found = _read(store, _CHOOSING, row_filter(choice))
    found, _ = _without_excluded(store, found)
    return len(_selected(choice, found, _scores(store, choice, found))[0])


def row_filter(choice: RowChoice) -> Filter:
    """The choice as a filter over EXPERIENCES, without its conditions on scores and groups.

    Raises: RecipeError when `where` is not valid.
    """
    parts: list[Filter] = [In("source", tuple(choice.sources)), Not(In("source", MEASURING_SOURCES))]
    if choice.run is not None:
        parts.append(Compare("run_id", "eq", choice.run))
    if choice.where is not None:
        parts.append(parse_text(choice.where, EXPERIENCES))
    return And(tuple(parts))


def _read(store: BufferReader, columns: Sequence[str], where: Filter) -> pa.Table:
    schema = pa.schema([EXPERIENCES.field(name) for name in columns])
    batches = [batch.select(columns) for batch in store.batches("experiences", columns, where)]
    return pa.Table.from_batches(batches, schema=schema)


def _without_excluded(store: BufferReader, found: pa.Table) -> tuple[pa.Table, int]:
    """The rows that no person wants left out, and how many others there are."""
    unwanted = pa.array(sorted(excluded(store).rows), pa.string())
    kept = found.filter(pc.invert(pc.is_in(found["experience_id"], value_set=unwanted)))
    return kept, found.num_rows - kept.num_rows


def _scores(store: BufferReader, choice: RowChoice, found: pa.Table) -> npt.NDArray[np.float64]:
    """(R,) the newest feedback about each row, else its effective reward; NaN where it has neither."""
    rewards = ShapedRewards(store).effective(found).cast(pa.float64()).to_numpy()
    if choice.feedback is None:
        return np.array(rewards, np.float64)
    ids = found["experience_id"].combine_chunks()
    newest = fold(feedback_about(store, choice.feedback, ids.to_pylist()), "last").values_for(ids)
    return np.where(np.isfinite(newest), newest, rewards)


def _selected(
    choice: RowChoice, found: pa.Table, scores: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], Counter[str]]:
    """Indices of the rows that score high enough, and how many others do not, by reason."""
    left_out: Counter[str] = Counter()
    kept = np.arange(found.num_rows)
    if choice.min_reward is not None or choice.best_of is not None:
        known = np.isfinite(scores)
        left_out["the row has no reward"] = int((~known).sum())
        kept = kept[known]
    if choice.min_reward is not None:
        # rewards are stored as float32, in which 0.9 is below the recipe's 0.9
        enough = scores[kept].astype(np.float32) >= np.float32(choice.min_reward)
        left_out[f"its reward is below {choice.min_reward:g}"] = int((~enough).sum())
        kept = kept[enough]
    if choice.best_of is not None:
        best = _best(found["group_id"].take(pa.array(kept)), scores[kept], choice.best_of)
        left_out[f"it is not among the best {choice.best_of} of its group"] = len(kept) - len(best)
        kept = kept[best]
    return kept, left_out


def _best(groups: pa.ChunkedArray, scores: npt.NDArray[np.float64], number: int) -> npt.NDArray[np.int64]:
    """Indices of the best `number` rows of each group, ascending."""
    codes = np.asarray(groups.combine_chunks().dictionary_encode().indices)
    order = np.lexsort((np.arange(len(codes)), -scores, codes))
    sorted_codes = codes[order]
    starts = np.flatnonzero(np.r_[True, sorted_codes[1:] != sorted_codes[:-1]]) if len(codes) else codes
    rank = np.arange(len(codes)) - np.repeat(starts, np.diff(np.r_[starts, len(codes)]))
    return np.sort(order[rank < number])


def _asked(rows: pa.Table) -> Iterator[tuple[str, Sequence[Message]]]:
    """Task id and prompt of each row."""
    for row in from_table(rows.select(["messages", "prompt_messages", "task_id"]), EXPERIENCES):
        prompt = row["messages"][: row["prompt_messages"]]
        yield row["task_id"], prompt or [{"role": "user", "content": row["task_id"]}]


def require_rows(store: BufferReader, choice: RowChoice) -> None:
    """Check that the filter passes at least one row; only one row is read.

    Raises: TrainingError with the numbers that the buffer has, where there is none.
    """
    if not store.read("experiences", ["seq"], row_filter(choice), 1).num_rows:
        raise TrainingError(_no_rows(store, choice, 0, {}))


def any_scored(store: BufferReader, choice: RowChoice) -> bool:
    """Whether a row that the filter passes has a score."""
    given = And((row_filter(choice), Not(IsNull("reward"))))
    if store.read("experiences", ["seq"], given, 1).num_rows:
        return True
    found = _read(store, _CHOOSING, row_filter(choice))
    return bool(np.isfinite(_scores(store, choice, found)).any())


def _no_rows(store: BufferReader, choice: RowChoice, found: int, left_out: Mapping[str, int]) -> str:
    of_run = f" of run '{choice.run}'" if choice.run else ""
    filtered = f" that '{choice.where}' lets through" if choice.where else ""
    return (
        f"there is no experience to train on: the buffer has {store.counts()['experiences']} rows, "
        f"{found}{of_run} from {', '.join(choice.sources)}{filtered}{listed_reasons(left_out)}. Loosen the "
        "stage's 'data', or bring rows in: an exploring run, rft data run, or rft buffer import."
    )


def listed_reasons(left_out: Mapping[str, int]) -> str:
    """Reasons for leaving out examples, in brackets; empty if none was."""
    listed = "; ".join(f"{count} x {reason}" for reason, count in left_out.items())
    return f" ({listed})" if listed else ""
