"""The checks of experiences, column by column over a whole batch; `validation.py` calls them."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import from_json

from rft_data.core.codec import one_array
from rft_data.core.schema import INCOMING, is_json
from rft_data.core.words import ENDPOINT, RowSource

SOURCES = tuple(sorted(RowSource))
MAX_TEXT_BYTES = 8 << 20
"""Largest text or JSON value of one row."""
MAX_TOKENS = 4 << 20
"""Longest token list of one row."""

_OBJECTS = frozenset({"reward_parts", "sampling", "metadata"})
_HUGE = re.compile(rb"[eE]\+?\d{3}|\d{309}")
"""Finds numbers that may be too large for a float; JSON parsers turn them into infinity."""
_TOKEN_LISTS = ("token_ids", "action_mask", "logprobs", "teacher_logprobs")
_EPOCH = datetime(1970, 1, 1)
_FIRST_US, _LAST_US = ((t - _EPOCH) // timedelta(microseconds=1) for t in (datetime.min, datetime.max))
Mask = npt.NDArray[np.bool_]


class Findings:
    """The first reason why each bad row of a batch may not be stored."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}

    def refuse(self, bad: Mask | pa.Array, reason: str, *values: pa.Array | npt.NDArray[np.int32]) -> None:
        """Add a reason for every row where `bad` is true; each `{}` in it is replaced by the row's value."""
        mask = np.asarray(bad.fill_null(False)) if isinstance(bad, pa.Array) else bad
        for row in np.flatnonzero(mask).tolist():
            if row not in self.reasons:
                self.reasons[row] = reason.format(*(_shown(value[row]) for value in values))


def _shown(value: object) -> object:
    """A value for a message; invalid UTF-8 is escaped."""
    if isinstance(value, pa.StringScalar):
        return value.cast(pa.binary()).as_py().decode("utf-8", "backslashreplace")
    return value.as_py() if isinstance(value, pa.Scalar) else value


def check_identity(table: pa.Table, found: Findings) -> None:
    """Required values are not null or empty, and `source` is one of SOURCES."""
    for field in INCOMING:
        column = table.column(field.name)
        if not field.nullable and column.null_count:
            found.refuse(one_array(column.is_null()), f"{field.name} is null")
    for name in ("experience_id", "run_id", "taskset", "task_id", "group_id"):
        found.refuse(one_array(pc.equal(table.column(name), "")), f"{name} is empty")
    source = one_array(table.column("source"))
    known = pc.is_in(source, value_set=pa.array(SOURCES))
    found.refuse(pc.invert(known), f"source is '{{}}'; one of {', '.join(SOURCES)} is needed", source)


def check_text(table: pa.Table, found: Findings, *, parsed: bool) -> None:
    """Texts are UTF-8 of bounded size; JSON columns hold JSON."""
    for field in INCOMING:
        if not pa.types.is_string(field.type):
            continue
        column = one_array(table.column(field.name))
        found.refuse(_invalid_utf8(column), f"{field.name} is not valid UTF-8")
        size = pc.binary_length(column)
        if (pc.max(size).as_py() or 0) > MAX_TEXT_BYTES:
            reason = f"{field.name} has {{}} bytes; at most {MAX_TEXT_BYTES} are stored in a row"
            found.refuse(pc.greater(size, MAX_TEXT_BYTES), reason, size)
        if is_json(field):
            opening = "{" if field.name in _OBJECTS else "["
            other = pc.invert(pc.starts_with(column, opening))
            found.refuse(other, f"{field.name} is no JSON {'object' if opening == '{' else 'list'}")
            if not parsed:
                found.refuse(_invalid_json(column), f"{field.name} is not JSON (NaN and infinities are not)")


def _invalid_utf8(column: pa.Array) -> Mask:
    """Whether each text is invalid UTF-8; nearly always none is, which one check of the column tells."""
    bad = np.zeros(len(column), bool)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for index in range(len(column)):
            try:
                column.slice(index, 1).validate(full=True)
            except pa.ArrowInvalid:
                bad[index] = True
    return bad


def _invalid_json(column: pa.Array) -> Mask:
    distinct = pc.unique(column.cast(pa.binary()))
    bad = [text for text in distinct.to_pylist() if text is not None and not _is_json_text(text)]
    mask: Mask = np.asarray(pc.is_in(column.cast(pa.binary()), value_set=pa.array(bad, pa.binary())))
    return mask


def _is_json_text(text: bytes) -> bool:
    try:
        from_json(text, allow_inf_nan=False, cache_strings="none")
        if _HUGE.search(text):
            json.loads(text, parse_float=_finite)
    except (ValueError, RecursionError):
        return False
    return True


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def check_tokens(table: pa.Table, found: Findings) -> None:
    """Token lists are present together, have one length and hold valid values."""
    lists = {name: one_array(table.column(name)) for name in _TOKEN_LISTS}
    present = {name: np.asarray(column.is_valid()) for name, column in lists.items()}
    sizes = {name: np.asarray(pc.list_value_length(column).fill_null(0)) for name, column in lists.items()}
    rollout = np.asarray(pc.equal(one_array(table.column("source")), RowSource.ROLLOUT).fill_null(False))
    rollout = rollout & ~_from_endpoint(table, present["token_ids"])
    for name in ("token_ids", "action_mask", "logprobs"):
        found.refuse(
            rollout & ~present[name],
            f"{name} is missing; a rollout needs token_ids, action_mask and logprobs",
        )
    ids, total = present["token_ids"], sizes["token_ids"]
    found.refuse(ids & ~present["action_mask"], "action_mask is missing beside token_ids")
    for name in _TOKEN_LISTS[1:]:
        found.refuse(present[name] & ~ids, f"{name} without token_ids")
        reason = f"token lists differ in length: {{}} token_ids, {{}} {name}"
        found.refuse(present[name] & ids & (sizes[name] != total), reason, total, sizes[name])
    reason = f"token_ids has {{}} tokens; at most {MAX_TOKENS} are stored in a row"
    found.refuse(total > MAX_TOKENS, reason, total)
    prompt = np.asarray(one_array(table.column("prompt_length")).fill_null(0))
    outside = (prompt < 0) | (ids & (prompt > total))
    found.refuse(outside, "prompt_length is {} for {} tokens", prompt, total)
    for name, column in lists.items():
        if not _sound(name, column.flatten()):
            found.refuse(_rows_with(column, _bad_values(name, column)), _VALUE_REASONS[name])
    _versions(table, found, rollout, total)


def _from_endpoint(table: pa.Table, ids: Mask) -> Mask:
    """Whether each row has no token ids and says that an endpoint sampled it, which gives none."""
    if ids.all():
        return np.zeros(len(ids), bool)
    marked = pc.match_substring(one_array(table.column("sampling")), f'"{ENDPOINT}":')
    found: Mask = ~ids & np.asarray(marked.fill_null(False))
    return found


_VALUE_REASONS = {
    "token_ids": "token_ids hold a negative or null id",
    "action_mask": "action_mask holds a value other than 0 and 1",
    "logprobs": "logprobs hold NaN, an infinity or null",
    "teacher_logprobs": "teacher_logprobs hold NaN, an infinity or null",
}


def _sound(name: str, values: pa.Array) -> bool:
    """Whether all values are valid, by their minimum and maximum, which is fast."""
    if values.null_count:
        return False
    if not len(values):
        return True
    numbers = values.to_numpy()
    if name == "token_ids":
        return bool(numbers.min() >= 0)
    if name == "action_mask":
        return bool(numbers.view(np.uint8).max() <= 1)
    return bool(np.isfinite(numbers.min()) and np.isfinite(numbers.max()))  # min and max of NaN are NaN


def _bad_values(name: str, column: pa.ListArray) -> Mask:
    """Whether each element of a list column is invalid."""
    nulls = np.asarray(column.values.is_null())
    values = np.asarray(column.values.fill_null(0))
    if name == "token_ids":
        bad = values < 0
    elif name == "action_mask":
        bad = (values != 0) & (values != 1)
    else:
        bad = ~np.isfinite(values)
    mask: Mask = bad | nulls
    return mask


def _rows_with(column: pa.ListArray, bad: Mask) -> Mask:
    """Rows of a list column that hold one of the bad elements."""
    rows = np.zeros(len(column), bool)
    places = np.flatnonzero(bad)
    if len(places):
        owners = np.searchsorted(column.offsets.to_numpy(), places, side="right") - 1
        rows[owners[(owners >= 0) & (owners < len(column))]] = True
    mask: Mask = rows & np.asarray(column.is_valid())
    return mask


def _versions(table: pa.Table, found: Findings, rollout: Mask, total: npt.NDArray[np.int32]) -> None:
    low, high = one_array(table.column("version_min")), one_array(table.column("version_max"))
    found.refuse(
        rollout & np.asarray(low.is_null()),
        "version_min is missing; a rollout needs the policy version that sampled it",
    )
    found.refuse(pc.greater(low, high), "version_min is above version_max")
    found.refuse(pc.xor(low.is_null(), high.is_null()), "version_min and version_max go together")
    spans = one_array(table.column("version_spans"))
    start, end = (np.asarray(spans.values.field(name).fill_null(-1)) for name in ("start", "end"))
    owners = np.searchsorted(spans.offsets.to_numpy(), np.arange(len(start)), side="right") - 1
    limits = total[np.clip(owners, 0, len(total) - 1)]
    bad = np.asarray(pc.or_(spans.values.is_null(), spans.values.field("version").is_null())).copy()
    bad |= (start < 0) | (start >= end) | (end > limits)
    found.refuse(_rows_with(spans, bad), "version_spans do not lie within token_ids")


def check_lists_and_times(table: pa.Table, found: Findings) -> None:
    """Payload ids are UTF-8; the time is in the years 1 to 9999."""
    payloads = one_array(table.column("payloads"))
    ids = payloads.values
    bad = np.asarray(ids.is_null()) | _invalid_utf8(ids)
    found.refuse(_rows_with(payloads, bad), "payloads hold null or an id that is not valid UTF-8")
    made = one_array(table.column("created_at")).cast(pa.int64())
    outside = pc.or_(pc.less(made, _FIRST_US), pc.greater(made, _LAST_US))
    found.refuse(outside, "created_at is outside the years 1 to 9999")


def check_reward(table: pa.Table, found: Findings) -> None:
    """A reward is a finite number or null."""
    reward = one_array(table.column("reward"))
    found.refuse(pc.invert(pc.is_finite(reward)), "reward is {}; a finite number or null is needed", reward)
