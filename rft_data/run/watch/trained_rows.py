"""Figures of the rows that a step trained on, under TRL's names, which only the stored rows tell.

The trainer reports what its lease tells (trainers/policy/batch_metrics.py).
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.facts import Numbers

_CUT = ("length", "abort")
"""Finish reasons of a completion that did not end by itself."""


def trained_facts(rows: pa.Table) -> Numbers:
    """How completions ended, and each reward component.

    Args: rows: experiences, as stored.
    Returns: `completions/clipped_ratio` of the rows with tokens;
        `completions/{mean,min,max}_terminated_length` in tokens, of those that ended by themselves (0 where
        none did, as in TRL); `rewards/NAME/mean` and `/std` (of a sample) of the components before weights,
        over the rows that have them.
    """
    if not rows.num_rows:
        return {}
    parts: dict[str, list[float]] = defaultdict(list)
    for text in rows["reward_parts"].to_pylist():
        for name, value in json.loads(text).items():
            parts[name].append(float(value))
    facts = _endings(rows.filter(pc.is_valid(rows["token_ids"])))
    for name, values in sorted(parts.items()):
        facts[f"rewards/{name}/mean"] = statistics.fmean(values)
        if len(values) > 1:
            facts[f"rewards/{name}/std"] = statistics.stdev(values)
    return facts


def _endings(rows: pa.Table) -> Numbers:
    """How the completions of tokenised rows ended; experts' answers are stored without tokens."""
    if not rows.num_rows:
        return {}
    lengths = pc.subtract(pc.list_value_length(rows["token_ids"]), rows["prompt_length"])
    ended = lengths.filter(pc.invert(pc.is_in(rows["finish_reason"], pa.array(_CUT)))).to_pylist()
    known = ended or [0]
    return {
        "completions/clipped_ratio": 1.0 - len(ended) / rows.num_rows,
        "completions/mean_terminated_length": statistics.fmean(known),
        "completions/min_terminated_length": float(min(known)),
        "completions/max_terminated_length": float(max(known)),
    }
