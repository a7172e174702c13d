"""The bounds of validation: each is tried on both of its sides."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from rft_data.buffer.validation import admit
from rft_data.core.codec import to_table
from rft_data.core.schema import INCOMING
from tests.rft_data.conftest import make_experience


def span(start: int, end: int) -> dict[str, object]:
    return {"version_spans": ((3, start, end),)}


def long(tokens: int) -> dict[str, object]:
    ids = np.zeros(tokens, np.int32)
    return {"source": "expert", "token_ids": ids, "action_mask": ids.astype(np.int8), "logprobs": None}


FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
BOUNDS: dict[str, tuple[list[dict[str, object]], list[dict[str, object]]]] = {
    "prompt_length is": ([{"prompt_length": n} for n in (0, 4)], [{"prompt_length": n} for n in (-1, 5)]),
    "version_spans do not lie": (
        [span(0, 4), span(0, 1), span(3, 4), span(2, 3)],
        [span(-1, 4), span(0, 5), span(4, 5), span(2, 2), span(3, 2), span(4, 4)],
    ),
    "version_min is above": (
        [{"version_min": 3, "version_max": n} for n in (3, 4)],
        [{"version_min": 3, "version_max": n} for n in (2, 0)],
    ),
    "token_ids hold": ([{"token_ids": [0, 0, 0, 0]}], [{"token_ids": [-1, 0, 0, 0]}]),
    "action_mask holds": ([{"action_mask": [1, 1, 1, 1]}], [{"action_mask": [0, 0, 1, n]} for n in (2, -1)]),
    "token_ids has": ([long(4 << 20)], [long((4 << 20) + 1)]),
    "completion_text has": (
        [{"completion_text": "x" * (8 << 20)}],
        [{"completion_text": "é" * (4 << 20) + "x"}],
    ),
    "created_at is": ([{"created_at": FIRST}, {"created_at": LAST}], []),
}
"""By how a reason begins: changes of a row that are just within a bound, and such that are just outside."""


@pytest.mark.slow
@pytest.mark.parametrize("reason", BOUNDS)
def test_bounds_are_where_they_are_said_to_be(reason: str) -> None:
    inside, outside = BOUNDS[reason]
    for row in outside or [None]:  # one at a time: a column with a bad value is looked at more closely
        rows = [*inside, row] if row else inside
        table = to_table([make_experience(i, **changes) for i, changes in enumerate(rows)], INCOMING)
        good, places, refused = admit(table, parsed=True)
        assert places.tolist() == list(range(len(inside)))
        assert good.equals(table.slice(0, len(inside)))
        assert [found.reason[: len(reason)] for found in refused] == ([reason] if row else [])


@pytest.mark.parametrize("edge", [FIRST, LAST])
def test_time_next_to_what_python_can_hold_is_set_aside(edge: datetime) -> None:
    table = to_table([make_experience(0, created_at=edge)] * 2, INCOMING)
    past = table.column("created_at").cast(pa.int64())[0].as_py() + (1 if edge is LAST else -1)
    kind = INCOMING.field("created_at").type
    made = pa.chunked_array([table.column("created_at").chunk(0).slice(0, 1), pa.array([past]).cast(kind)])
    _, places, refused = admit(
        table.set_column(INCOMING.get_field_index("created_at"), INCOMING.field("created_at"), made),
        parsed=True,
    )
    assert places.tolist() == [0]
    assert refused[0].reason == "created_at is outside the years 1 to 9999"
