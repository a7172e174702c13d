"""The door: what an experience must satisfy before it is stored.

One bad row never costs its batch: it comes back with its reason and the rest go on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rft_data.rows import Experience

SOURCES = frozenset({"rollout", "expert", "import", "eval", "probe"})
MAX_TEXT_BYTES = 8 << 20
"""Largest completion text of one row."""


def admit(rows: Sequence[Experience]) -> tuple[list[int], list[tuple[int, str]]]:
    """Return (indices of good rows, [(index, reason)] of refused ones)."""
    good: list[int] = []
    refused: list[tuple[int, str]] = []
    for index, row in enumerate(rows):
        reason = fault(row)
        if reason is None:
            good.append(index)
        else:
            refused.append((index, reason))
    return good, refused


def fault(row: Experience) -> str | None:
    """Why a row may not be stored; None when it may."""
    return _identity_fault(row) or _text_fault(row) or _token_fault(row) or _reward_fault(row)


def _identity_fault(row: Experience) -> str | None:
    if row.source not in SOURCES:
        return f"source is {row.source!r}; one of {', '.join(sorted(SOURCES))} is needed"
    for name in ("experience_id", "run_id", "taskset", "task_id", "group_id"):
        if not getattr(row, name):
            return f"{name} is empty"
    return None


def _text_fault(row: Experience) -> str | None:
    try:
        size = len(row.completion_text.encode())
        for message in row.messages:
            str(message.get("content", "")).encode()
    except UnicodeEncodeError:
        return "text holds a lone surrogate, which is not valid Unicode"
    if size > MAX_TEXT_BYTES:
        return f"completion_text has {size} bytes; at most {MAX_TEXT_BYTES} are stored in a row"
    return None


def _token_fault(row: Experience) -> str | None:
    lists = {"token_ids": row.token_ids, "action_mask": row.action_mask, "logprobs": row.logprobs}
    absent = [name for name, values in lists.items() if values is None]
    if absent:
        if row.source == "rollout":
            return f"{absent[0]} is missing; a rollout needs token_ids, action_mask and logprobs"
        # expert and imported rows may have ids and a mask without logprobs, or none of the three
        return None if "token_ids" in absent or absent == ["logprobs"] else f"{absent[0]} is missing"
    lengths = {name: len(values) for name, values in lists.items() if values is not None}
    if len(set(lengths.values())) > 1:
        return f"token lists differ in length: {lengths}"
    if not 0 <= row.prompt_length <= lengths["token_ids"]:
        return f"prompt_length is {row.prompt_length} for {lengths['token_ids']} tokens"
    if not np.isin(np.asarray(row.action_mask), (0, 1)).all():
        return "action_mask holds a value other than 0 and 1"
    if not np.isfinite(np.asarray(row.logprobs, dtype=np.float64)).all():
        return "logprobs hold NaN or an infinity"
    if row.source == "rollout" and row.version_min is None:
        return "version_min is missing; a rollout needs the policy version that sampled it"
    return None


def _reward_fault(row: Experience) -> str | None:
    if row.reward is not None and not math.isfinite(row.reward):
        return f"reward is {row.reward}; a finite number or null is needed"
    for name, value in row.reward_parts.items():
        if not math.isfinite(value):
            return f"reward part '{name}' is {value}; a finite number is needed"
    return None
