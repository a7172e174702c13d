"""The types of stored rows name the columns of the schemas."""

from __future__ import annotations

import types
from typing import get_args, get_type_hints

import pyarrow as pa
import pytest

from rft_data.core.schema import ANNOTATIONS, EXPERIENCES, GROUPS, LEASES
from rft_data.core.stored_rows import AnnotationRow, ExperienceRow, GroupRow, LeaseEventRow

_WHEN_STORED = pa.schema([LEASES.field("event_id"), LEASES.field("created_at")])
_EVENTS = pa.schema([field for field in LEASES if field.name not in _WHEN_STORED.names])
_ROWS = [
    (ExperienceRow, EXPERIENCES),
    (GroupRow, GROUPS),
    (AnnotationRow, ANNOTATIONS),
    (LeaseEventRow, _EVENTS),
]


@pytest.mark.parametrize(("row", "schema"), _ROWS, ids=[row.__name__ for row, _ in _ROWS])
def test_a_rows_type_names_every_column_and_says_which_may_be_null(row: type, schema: pa.Schema) -> None:
    hints = get_type_hints(row)
    assert sorted(hints) == sorted(schema.names)
    optional = {name for name, kind in hints.items() if types.NoneType in get_args(kind)}
    assert optional == {field.name for field in schema if field.nullable}
