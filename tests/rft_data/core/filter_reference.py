"""What a filter means, row by row: the reference that its SQL is compared with."""

import operator
from collections.abc import Mapping
from typing import Any

from rft_data.core.filters import And, Compare, Contains, Filter, In, IsNull, Not, Or

_SIGNS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def matches(filter_: Filter, row: Mapping[str, Any]) -> bool:
    """Whether the filter lets a row through.

    The filter's values are in their columns' types, as `bind`, `parse_filter` and `parse_text` give them.
    """
    return _truth(filter_, row) is True


def _truth(filter_: Filter, row: Mapping[str, Any]) -> bool | None:
    match filter_:
        case And(parts):
            found = [_truth(part, row) for part in parts]
            return False if False in found else None if None in found else True
        case Or(parts):
            found = [_truth(part, row) for part in parts]
            return True if True in found else None if None in found else False
        case Not(part):
            truth = _truth(part, row)
            return None if truth is None else not truth
        case _:
            return _leaf_truth(filter_, row[filter_.column])


def _leaf_truth(leaf: Filter, value: Any) -> bool | None:
    match leaf:
        case IsNull():
            return value is None
        case In(_, values) if not values:
            return False
    if value is None:
        return None
    match leaf:
        case In(_, values):
            return value in values
        case Contains(_, text, prefix):
            return bool(value.startswith(text)) if prefix else text in value
        case Compare(_, op, wanted):
            return bool(_SIGNS[op](value, wanted))
    raise TypeError(f"{leaf!r} is not a filter.")
