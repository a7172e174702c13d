"""The way of a run's rollouts, from sampled to trained, as a chain of numbers that add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rft_data.buffer import Buffer
from rft_data.sampler.accounts import accounts
from rft_data.sampler.conservation import Conservation

MOST_ROWS = 200_000
"""Stored rows and verdicts up to which a page counts them one by one."""
_WIDTH = 300


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the way from rows sampled to rows trained on: how many went on and how many did not."""

    what: str
    gone: int
    """Rows that came no further."""
    left: int
    """Rows that went on."""
    lost: bool
    """Whether those rows will never be trained on; else they wait."""
    dropped_by: str
    """The operator that dropped them, or empty."""
    bar: tuple[float, float]
    """Widths of what is left and what is gone in the picture, of 300."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One consumer's account."""

    consumer: str
    sampled: int
    stages: tuple[Stage, ...]
    trained: int
    reused: int
    """Gradient uses beyond the first."""
    residual: int
    """Rows that are not accounted for: 0 in a sound buffer."""
    faults: tuple[str, ...]


def flows(buffer: Buffer, run_id: str, operators: Sequence[str]) -> list[Flow] | None:
    """The flow of a run for each of its consumers; None where the buffer has too many rows to count here.

    Args: operators: the run's, in the order they judge in.
    """
    counts = buffer.counts()
    if max(counts["experiences"], counts["annotations"]) > MOST_ROWS:
        return None
    return [flow(consumer, one, operators) for consumer, one in accounts(buffer, run_id).items()]


def flow(consumer: str, counts: Conservation, operators: Sequence[str]) -> Flow:
    """The account as a chain: each stage takes rows off what the one before it left."""
    dropped = _by_operator(counts.filtered, operators)
    parts = [
        ("not judged yet", counts.unjudged, False, ""),
        ("waiting for a reward", counts.awaiting, False, ""),
        ("failed, cancelled or set aside", counts.cancelled, True, ""),
        *((f"dropped by {name}", count, True, name) for name, count in dropped.items()),
        ("quarantined: an operator failed on them", counts.quarantined, True, ""),
        ("without a reward", counts.unscored, True, ""),
        ("stale: past the bound of their age", counts.stale, True, ""),
        ("kept, waiting for the trainer", counts.pending, False, ""),
        ("in a step that no checkpoint holds yet", counts.leased, False, ""),
    ]
    parts = [part for part in parts if part[1]]
    left = accumulate(
        (gone for _, gone, _, _ in parts), lambda rest, gone: rest - gone, initial=counts.produced
    )
    scale = _WIDTH / max(counts.produced, 1)
    stages = tuple(
        Stage(what, gone, rest, lost, name, (round(rest * scale, 1), round(gone * scale, 1)))
        for (what, gone, lost, name), rest in zip(parts, list(left)[1:], strict=True)
    )
    return Flow(
        consumer,
        counts.produced,
        stages,
        counts.trained,
        counts.reused,
        counts.residual,
        tuple(counts.faults),
    )


def _by_operator(filtered: Mapping[str, int], operators: Sequence[str]) -> dict[str, int]:
    """In the order of the list; operators of an earlier one after them."""
    return {name: filtered[name] for name in dict.fromkeys((*operators, *filtered)) if filtered.get(name)}
