"""Whole groups in parts, and the places of their members."""

import pyarrow as pa
import pytest

from ops import members
from ops.members import parts


def test_a_part_has_whole_groups_of_similar_size_and_enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_PART_ROWS", 5)
    named = [
        (name, member) for name, size in {"a": 4, "b": 1, "c": 3, "d": 2}.items() for member in range(size)
    ]
    mixed = [named[(7 * i) % 10] for i in range(10)]  # no group's rows lie together
    table = pa.table(
        {
            "group_id": [name for name, _ in mixed],
            "member": [member for _, member in mixed],
            "turn": [0] * 10,
        }
    )
    found = [[mixed[row] for row in part.rows] for part in parts(table, None)]
    assert [sorted(rows) for rows in found] == [
        [("b", 0), ("c", 0), ("c", 1), ("c", 2), ("d", 0), ("d", 1)],
        [("a", 0), ("a", 1), ("a", 2), ("a", 3)],
    ]
    small, large = parts(table, None)
    assert (small.shape, large.shape) == ((3, 3), (1, 4))
    assert [mixed[row] for row in large.first[0]] == [("a", place) for place in range(4)]
    assert sorted((small.first >= 0).sum(axis=1)) == [1, 2, 3]
    assert all(small.first[small.group, small.place] == small.rows)
