"""A few rollouts of a step, as text, for trackers that show tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
import pyarrow as pa

from rft_data.core.chat import message_text
from rft_data.core.effective_reward import effective_rewards
from rft_data.core.masking import masked
from rft_data.core.words import Verdict

SAMPLES = 4
"""Rollouts of a step that are shown."""
_LONGEST = 4000
"""Characters of a text that are shown."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One row that a step trained on."""

    prompt: str
    completion: str
    reward: float | None
    """The effective one."""
    advantage: float | None
    """Its mean over the row's tokens, where they differ."""
    verdict: Verdict
    """`kept`, or `masked`: in no loss."""


COLUMNS = tuple(field.name for field in fields(Sample))


def samples_of_step(rows: pa.Table, leased: pa.Table) -> tuple[Sample, ...]:
    """At most SAMPLES rows, evenly spread over the step's.

    Args: rows: experiences, as stored. leased: the same rows with advantage, `masked` and `shaped_reward`.
    """
    if not rows.num_rows:
        return ()
    places = np.unique(np.linspace(0, rows.num_rows - 1, SAMPLES).round().astype(int))
    rewards = effective_rewards(leased)
    return tuple(
        Sample(
            prompt=_cut(_prompt(rows["messages"][at].as_py(), rows["prompt_messages"][at].as_py())),
            completion=_cut(rows["completion_text"][at].as_py()),
            reward=rewards[at].as_py(),
            advantage=_mean(leased["advantage"][at].as_py()),
            verdict=Verdict.MASKED if leased["masked"][at].as_py() else Verdict.KEPT,
        )
        for at in map(int, places)
    )


def table_rows(samples: Sequence[Sample]) -> list[list[object]]:
    """The samples as rows of plain values, in the order of COLUMNS."""
    return [[*astuple(sample)[:-1], str(sample.verdict)] for sample in samples]


def plain_text(samples: Sequence[Sample]) -> str:
    """The samples one below the other, as Markdown that keeps line breaks."""
    parts = []
    for sample in samples:
        head = f"reward {sample.reward}, advantage {sample.advantage}, {sample.verdict}"
        text = f"{head}\n{sample.prompt}\n--> {sample.completion}"
        parts.append("\n".join(f"    {line}" for line in text.splitlines()))
    return "\n\n---\n\n".join(parts)


def _prompt(messages: str, count: int) -> str:
    found = json.loads(messages)[:count]
    if len(found) == 1:
        return message_text(found[0])
    return "\n".join(f"{item['role']}: {message_text(item)}" for item in found)


def _mean(advantage: Sequence[float] | None) -> float | None:
    return float(np.mean(advantage)) if advantage else None


def _cut(text: str) -> str:
    text = masked(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
