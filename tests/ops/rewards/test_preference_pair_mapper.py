"""preference_pair_mapper against all pairs of each group, one by one."""

from collections import defaultdict
from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.rewards.groups import table_of

rows = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(0, 6)),
    min_size=1,
    max_size=24,
)


def pairs_of(table):
    return {
        (better, worse)
        for better, others in zip(
            table["experience_id"].to_pylist(), table["preferred_over"].to_pylist(), strict=True
        )
        for worse in others or []
    }


def reference(rows, rule, margin, ratio, cap):
    groups = defaultdict(list)
    for place, (group, reward, length) in enumerate(rows):
        if reward is not None:
            groups[group].append((-reward, length, f"e{place:02d}"))
    found = set()
    for members in groups.values():
        members.sort()
        candidates = [(members[0], members[-1])] if rule == "best_vs_worst" else combinations(members, 2)
        fine = [
            (one, other)
            for one, other in candidates
            if other[0] - one[0] > margin
            and (ratio is None or max(one[1], other[1]) <= ratio * min(one[1], other[1]))
        ]
        fine.sort(key=lambda pair: (pair[0][0] - pair[1][0], pair[0][2], pair[1][2]))
        found |= {(one[2], other[2]) for one, other in fine[:cap]}
    return found


@pytest.mark.slow
@given(
    rows=rows,
    rule=st.sampled_from(["best_vs_worst", "all"]),
    margin=st.sampled_from([0.0, 0.25, 0.6]),
    ratio=st.sampled_from([None, 1.0, 2.0]),
    cap=st.integers(1, 4),
)
def test_pairs_equal_looking_at_each(operator, rows, rule, margin, ratio, cap):
    op = operator("preference_pair_mapper", pairs=rule, margin=margin, max_length_ratio=ratio, max_pairs=cap)
    out = op.process_table(table_of(rows))
    assert pairs_of(out) == reference(rows, rule, margin, ratio, cap)
    assert [] not in out["preferred_over"].to_pylist()


def test_later_turns_take_no_part(operator):
    table = table_of([(0, 0.0, 1), (0, 1.0, 1), (0, 1.0, 1)]).append_column("turn", pa.array([0, 1, 0]))
    assert pairs_of(operator("preference_pair_mapper").process_table(table)) == {("e02", "e00")}


def test_no_rows(operator):
    out = operator("preference_pair_mapper", pairs="all").process_table(table_of([(0, 1.0, 1)]).slice(0, 0))
    assert out["preferred_over"].to_pylist() == []


@pytest.mark.parametrize(
    "args", [{"pairs": "some"}, {"margin": -0.1}, {"max_pairs": 0}, {"max_length_ratio": 0.5}]
)
def test_bad_arguments_are_refused(operator, args):
    with pytest.raises(ValueError, match="wanted"):
        operator("preference_pair_mapper", **args)
