"""Differences of two judgements, against a plain loop over the rows."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_data.run.rejudge import Difference
from rft_data.run.rejudge.compare import CHANGED

KIND = pa.schema(
    [
        ("experience_id", pa.string()),
        ("verdict", pa.string()),
        ("dropped_by", pa.string()),
        ("reason", pa.string()),
        ("advantage", pa.list_(pa.float32())),
        ("shaped_reward", pa.float32()),
    ]
)
number = st.sampled_from([0.0, 0.5, -1.0, 2.0])
row = st.fixed_dictionaries(
    {
        "verdict": st.sampled_from(["kept", "kept", "dropped", "quarantined"]),
        "advantage": st.none() | st.lists(number, max_size=3),
        "shaped_reward": st.none() | number,
    }
)


def table(rows: list) -> pa.Table:
    said = [
        dict.fromkeys(KIND.names)
        if one is None
        else {"experience_id": f"e{n}", "dropped_by": "x", "reason": "y", **one}
        for n, one in enumerate(rows)
    ]
    return pa.Table.from_pylist(said, schema=KIND)


@pytest.mark.slow
@given(pairs=st.lists(st.tuples(row, st.none() | row), max_size=12), cut=st.integers(0, 12))
@settings(max_examples=150)
def test_difference_equals_a_plain_loop(pairs: list, cut: int) -> None:
    found = Difference()
    for part in (pairs[:cut], pairs[cut:]):
        found.add(table([one for one, _ in part]), table([two for _, two in part]), 3)
    both = [(a, b) for a, b in pairs if b is not None and a["verdict"] == b["verdict"] == "kept"]
    gaps = [
        max((abs(x - y) for x, y in zip(a["advantage"], b["advantage"], strict=True)), default=0.0)
        for a, b in both
        if a["advantage"] is not None
        and b["advantage"] is not None
        and len(a["advantage"]) == len(b["advantage"])
    ]
    unequal = [
        (a, b)
        for a, b in both
        if (a["advantage"] is None) != (b["advantage"] is None)
        or len(a["advantage"] or ()) != len(b["advantage"] or ())
    ]
    shaped = [(a["shaped_reward"], b["shaped_reward"]) for a, b in both]
    known = [abs(x - y) for x, y in shaped if x is not None and y is not None]
    judged = [(a["verdict"] == "kept", b["verdict"] == "kept") for a, b in pairs if b is not None]
    assert (found.rows, found.both) == (len(pairs), len(both))
    assert found.unjudged == sum(b is None for _, b in pairs)
    assert found.only_first == judged.count((True, False))
    assert found.only_second == judged.count((False, True))
    assert found.advantage_changed == len(unequal) + sum(gap > CHANGED for gap in gaps)
    assert found.advantage_max == max(gaps, default=0.0)
    lonely = sum((x is None) != (y is None) for x, y in shaped)
    assert found.shaped_changed == lonely + sum(gap > CHANGED for gap in known)
    assert found.shaped_max == max(known, default=0.0)
    assert len(found.examples) == min(3, judged.count((True, False)) + judged.count((False, True)))


def test_masks_are_compared_where_both_sides_have_them() -> None:
    kept = [{"verdict": "kept", "advantage": [1.0], "shaped_reward": None}] * 4
    masked = [
        table(kept).append_column("masked", pa.array(flags, pa.bool_()))
        for flags in ([True, None, False, True], [True, False, True, None])
    ]
    found = Difference()
    found.add(*masked, 0)
    assert found.masked_changed == 2
    found.add(masked[0], table(kept), 0)
    assert found.masked_changed == 2
