"""Measurements of the trainer over all tokens of the steps that a row was trained in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rft_data.buffer import Buffer
from rft_data.core.filters import And, Compare, In
from rft_data.core.words import MetricRole
from rft_data.reading.lineage_parts import Lineage

_WORDS = {
    "entropy": "entropy, nats a token,",
    "sampling/sampling_logp_difference/mean": "trainer against engine, nats a token, mean",
    "sampling/sampling_logp_difference/max": "largest",
}
_MOST_STEPS = 3


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The trainer's figures of one step."""

    step: int
    numbers: tuple[tuple[str, float], ...]
    """Key and value, in a fixed order."""
    words: Mapping[str, str]
    """Meaning of each key."""


def trained_tokens(buffer: Buffer, line: Lineage, run_id: str) -> Mapping[str, Sequence[float]]:
    """Values of the trainer for each token of a row at the newest step that kept it: columns by name.

    A step that was taken again has rows again, of which the last counts.
    """
    steps = sorted(use.step for use in line.uses if use.run_id == run_id)
    if not steps:
        return {}
    named = (
        Compare("run_id", "eq", run_id),
        In("step", tuple(steps)),
        Compare("seq", "eq", line.experience["seq"]),
    )
    rows = buffer.read("trained_tokens", ["step", "logprobs", "entropies"], And(named)).to_pylist()
    return sorted(rows, key=lambda row: row["step"])[-1] if rows else {}


def trained_in(buffer: Buffer, line: Lineage, run_id: str) -> list[StepNumbers]:
    """The numbers of at most 3 steps of a run that a row was leased for; steps without any are left out."""
    steps = sorted({use.step for use in line.uses if use.run_id == run_id})[:_MOST_STEPS]
    if not steps:
        return []
    named = (
        Compare("run_id", "eq", run_id),
        Compare("role", "eq", MetricRole.TRAINER),
        In("key", tuple(_WORDS)),
        In("step", tuple(steps)),
    )
    rows = buffer.read("metrics", ["step", "key", "value"], And(named)).to_pylist()
    found = {(row["step"], row["key"]): row["value"] for row in rows}
    made = []
    for step in steps:
        numbers = tuple((key, found[step, key]) for key in _WORDS if (step, key) in found)
        if numbers:
            made.append(StepNumbers(step, numbers, _WORDS))
    return made
