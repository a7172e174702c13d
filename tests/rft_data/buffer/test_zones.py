import operator
from pathlib import Path
from typing import Any

import lance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.buffer.zones import Zones
from rft_data.core.filters import And, Compare, Filter, In, IsNull, Not, Or
from rft_data.core.filters.tree import Op
from tests.rft_data.conftest import make_experience

_NUMBERS = st.integers(-2, 30)
_LEAVES = st.one_of(
    st.builds(Compare, st.just("seq"), st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]), _NUMBERS),
    st.lists(_NUMBERS, max_size=4).map(lambda seqs: In("seq", tuple(seqs))),
    st.builds(Compare, st.just("reward"), st.sampled_from(["lt", "ge"]), st.floats(0, 1, width=32)),
    st.just(IsNull("reward")),
)
_FILTERS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: And(tuple(parts))),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: Or(tuple(parts))),
        inner.map(Not),
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Buffer:
    """28 rows in four fragments."""
    buffer = Buffer(tmp_path_factory.mktemp("zones") / "buffer")
    for start in range(0, 28, 7):
        buffer.append([make_experience(n, reward=n / 28) for n in range(start, start + 7)])
    return buffer


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(where=_FILTERS)
def test_a_filter_by_number_finds_what_a_scan_of_all_fragments_finds(stored: Buffer, where: Filter) -> None:
    of_all = Not(Not(where))
    assert Zones().holding(stored._store.head("experiences"), of_all) is None
    found = stored.read("experiences", ["seq", "reward"], where)
    assert found.equals(stored.read("experiences", ["seq", "reward"], of_all))


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_with_a_number_find_their_rows_at_the_edges_of_fragments(stored: Buffer, op: Op) -> None:
    compare = getattr(operator, op)
    for value in (-1, 0, 6, 7, 8, 13, 14, 20, 21, 27, 28):
        found = stored.read("experiences", ["seq"], Compare("seq", op, value))["seq"].to_pylist()
        assert found == [seq for seq in range(28) if compare(seq, value)]


def _looked_at(buffer: Buffer, zones: Zones, where: Filter) -> list[int] | None:
    kept = zones.holding(buffer._store.head("experiences"), where)
    return None if kept is None else [fragment.fragment_id for fragment in kept]


@pytest.mark.slow
def test_only_fragments_that_may_hold_the_numbers_are_looked_at(tmp_path: Path) -> None:
    zones = Zones()
    with Buffer(tmp_path / "buffer") as buffer:
        for start in (0, 4, 8):
            buffer.append([make_experience(n) for n in range(start, start + 4)])
        assert _looked_at(buffer, zones, Compare("seq", "eq", 5)) == [1]
        assert _looked_at(buffer, zones, In("seq", (1, 9))) == [0, 2]
        assert _looked_at(buffer, zones, And((Compare("seq", "ge", 3), Compare("seq", "lt", 8)))) == [0, 1]
        assert _looked_at(buffer, zones, Compare("seq", "gt", 11)) == []
        assert _looked_at(buffer, zones, Compare("seq", "ge", 0)) is None
        assert _looked_at(buffer, zones, Compare("reward", "ge", 0.5)) is None
        buffer.append([make_experience(n) for n in range(12, 16)])
        assert _looked_at(buffer, zones, Compare("seq", "eq", 13)) == [3]
        assert len(zones) == 4
        buffer.compact()
        assert _looked_at(buffer, zones, Compare("seq", "eq", 5)) is None
        assert len(zones) == 1  # what is merged away is forgotten


@pytest.mark.slow
def test_a_fragment_is_read_once_for_its_numbers_whatever_versions_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[list[int]] = []
    scanner = lance.LanceDataset.scanner

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        scanned.append([one.fragment_id for one in options.get("fragments") or self.get_fragments()])
        return scanner(self, *args, **options)

    folder, named = tmp_path / "buffer", Or((Compare("seq", "eq", 1), In("seq", ())))
    with Buffer(folder) as owner, Buffer(folder, read_only=True) as reader:
        for start in (0, 4, 8):
            owner.append([make_experience(n) for n in range(start, start + 4)])
        assert reader.read("experiences", ["seq"], named).num_rows == 1
        owner.append([make_experience(12)])
        monkeypatch.setattr(lance.LanceDataset, "scanner", counted)
        assert reader.read("experiences", ["seq"], named).num_rows == 1
    assert scanned == [[3], [0]]
