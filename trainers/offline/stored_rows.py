"""Which stored experiences an offline stage trains on, and which prompts are held out.

Two passes over the buffer: narrow columns to choose, then the chosen rows, whose digests are checked. Tokens
are `answers.py`'s business; nothing here needs torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.core.codec import from_table
from rft_data.core.errors import TrainingError
from rft_data.core.filters import And, Compare, Filter, In, Not, parse_text
from rft_data.core.rows import Message, content_id
from rft_data.core.schema import EXPERIENCES
from rft_data.core.words import MEASURING_SOURCES, TRAINABLE_SOURCES
from rft_data.exchange.feedback import feedback_about, fold

TAKEN_TOGETHER = 512
"""Rows read at a time."""


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Which experiences."""

    run: str | None = None
    """Only this run's; None: every run's."""
    sources: Sequence[str] = TRAINABLE_SOURCES
    where: str | None = None
    """A filter over EXPERIENCES, as text."""
    min_reward: float | None = None
    """Only rows whose score is at least this; rows without one are then left out."""
    best_of: int | None = None
    """Only so many of each group, by score; of equal ones those stored first."""
    feedback: str | None = None
    """A key of `feedback`: what was said last under it counts as the row's score, before its reward."""


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Experiences, in the order stored."""

    table: pa.Table
    """EXPERIENCES rows."""
    scores: npt.NDArray[np.float64]
    """One a row; NaN where it is not known."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many were left out, by reason."""


def is_heldout(prompt: Sequence[Message], share: float) -> bool:
    """Whether a prompt's content hash is in the held-out share.

    A prompt of one message is on the side where a taskset of the same `heldout` has its question.
    """
    named = prompt[0]["content"] if len(prompt) == 1 else [dict(message) for message in prompt]
    return int(content_id("split", named)[:8], 16) / 0x1_0000_0000 < share


def chosen_rows(store: Any, choice: RowChoice, heldout: float = 0.0) -> ChosenRows:
    """The experiences of a choice whose prompts are not held out.

    Args: store: a buffer, or a client of its hub. heldout: share of prompts, by content hash.
    Raises: TrainingError saying what there is when none is left; RecipeError for a bad filter.
    """
    columns = ["seq", "experience_id", "group_id", "reward"]
    found = _read(store, columns, row_filter(choice))
    scores = _scores(store, choice, found)
    kept, left_out = _selected(choice, found, scores)
    parts, kept_scores = [EXPERIENCES.empty_table()], [np.zeros(0)]
    for start in range(0, len(kept), TAKEN_TOGETHER):
        places = kept[start : start + TAKEN_TOGETHER]
        rows = store.take(np.asarray(found["seq"])[places].tolist())
        inside = np.array([not is_heldout(prompt, heldout) for prompt in _prompts(rows)], bool)
        left_out["the prompt is held out"] += int((~inside).sum())
        parts.append(rows.filter(pa.array(inside)))
        kept_scores.append(scores[places][inside])
    table = pa.concat_tables(parts)
    if table.num_rows == 0:
        raise TrainingError(_no_rows(store, choice, found.num_rows, +left_out))
    return ChosenRows(table, np.concatenate(kept_scores), dict(+left_out))


def row_filter(choice: RowChoice) -> Filter:
    """The choice as a filter over EXPERIENCES, score and group apart.

    Raises: RecipeError when `where` is not valid.
    """
    parts: list[Filter] = [In("source", tuple(choice.sources)), Not(In("source", MEASURING_SOURCES))]
    if choice.run is not None:
        parts.append(Compare("run_id", "eq", choice.run))
    if choice.where is not None:
        parts.append(parse_text(choice.where, EXPERIENCES))
    return And(tuple(parts))


def _read(store: Any, columns: Sequence[str], where: Filter) -> pa.Table:
    schema = pa.schema([EXPERIENCES.field(name) for name in columns])
    batches = [batch.select(columns) for batch in store.batches("experiences", columns, where)]
    return pa.Table.from_batches(batches, schema=schema)


def _scores(store: Any, choice: RowChoice, found: pa.Table) -> npt.NDArray[np.float64]:
    """(R,) the reward, or what was said about the row; NaN where neither is there."""
    rewards = found["reward"].cast(pa.float64()).fill_null(float("nan")).to_numpy()
    if choice.feedback is None:
        return np.array(rewards, np.float64)
    ids = found["experience_id"].combine_chunks()
    said = fold(feedback_about(store, choice.feedback, ids.to_pylist()), "last").values_for(ids)
    return np.where(np.isfinite(said), said, rewards)


def _selected(
    choice: RowChoice, found: pa.Table, scores: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], Counter[str]]:
    """(places of the rows that score well enough, why others do not)."""
    left_out: Counter[str] = Counter()
    kept = np.arange(found.num_rows)
    if choice.min_reward is not None or choice.best_of is not None:
        known = np.isfinite(scores)
        left_out["the row has no reward"] = int((~known).sum())
        kept = kept[known]
    if choice.min_reward is not None:
        # rewards are stored as float32, and 0.9 there is below 0.9
        enough = scores[kept].astype(np.float32) >= np.float32(choice.min_reward)
        left_out[f"its reward is below {choice.min_reward:g}"] = int((~enough).sum())
        kept = kept[enough]
    if choice.best_of is not None:
        best = _best(found["group_id"].take(pa.array(kept)), scores[kept], choice.best_of)
        left_out[f"it is not among the best {choice.best_of} of its group"] = len(kept) - len(best)
        kept = kept[best]
    return kept, left_out


def _best(groups: pa.ChunkedArray, scores: npt.NDArray[np.float64], number: int) -> npt.NDArray[np.int64]:
    """Places of the best `number` of each group, ascending."""
    codes = np.asarray(groups.combine_chunks().dictionary_encode().indices)
    order = np.lexsort((np.arange(len(codes)), -scores, codes))
    sorted_codes = codes[order]
    starts = np.flatnonzero(np.r_[True, sorted_codes[1:] != sorted_codes[:-1]]) if len(codes) else codes
    rank = np.arange(len(codes)) - np.repeat(starts, np.diff(np.r_[starts, len(codes)]))
    return np.sort(order[rank < number])


def _prompts(rows: pa.Table) -> Iterator[Sequence[Message]]:
    for row in from_table(rows.select(["messages", "prompt_messages", "task_id"]), EXPERIENCES):
        prompt = row["messages"][: row["prompt_messages"]]
        yield prompt or [{"role": "user", "content": row["task_id"]}]


def require_rows(store: Any, choice: RowChoice) -> None:
    """A narrow look: whether any row has the right source and run, and passes the filter.

    Raises: TrainingError saying what there is.
    """
    if not store.read("experiences", ["seq"], row_filter(choice), 1).num_rows:
        raise TrainingError(_no_rows(store, choice, 0, {}))


def _no_rows(store: Any, choice: RowChoice, found: int, left_out: Mapping[str, int]) -> str:
    of = f" of run '{choice.run}'" if choice.run else ""
    that = f" that '{choice.where}' lets through" if choice.where else ""
    return (
        f"there is no experience to train on: the buffer has {store.counts()['experiences']} rows, "
        f"{found}{of} from {', '.join(choice.sources)}{that}{reasons_of(left_out)}. Loosen the stage's "
        "'data', or bring rows in: an exploring run, rft data run, or rft buffer import."
    )


def reasons_of(left_out: Mapping[str, int]) -> str:
    """Why examples were left out, in brackets; empty if none was."""
    listed = "; ".join(f"{count} x {reason}" for reason, count in left_out.items())
    return f" ({listed})" if listed else ""
