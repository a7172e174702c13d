from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.buffer.few import names_few
from rft_data.core.filters import And, Compare, Filter, In, Not, Or
from tests.rft_data.conftest import make_experience

_SEQS = st.integers(-1, 40)
_NAMING = st.one_of(
    _SEQS.map(lambda seq: Compare("seq", "eq", seq)),
    st.lists(_SEQS, max_size=9).map(lambda seqs: In("seq", tuple(seqs))),
    st.integers(0, 12).map(lambda n: Compare("group_id", "eq", f"g{n}")),
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Buffer:
    """Rows of eight groups that several commits interleave, then compacted in part."""
    buffer = Buffer(tmp_path_factory.mktemp("few") / "buffer")
    for start in range(0, 36, 9):
        rows = [make_experience(n, group_id=f"g{n % 8}", reward=n / 36) for n in range(start, start + 9)]
        buffer.append(rows)
        if start == 18:
            buffer.compact()
    return buffer


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(naming=_NAMING, above=st.floats(0, 1, width=32))
def test_rows_that_a_filter_names_are_those_that_a_scan_finds(
    stored: Buffer, naming: Filter, above: float
) -> None:
    columns = ["reward", "seq", "token_ids", "group_id"]
    for where in (naming, And((naming, Compare("reward", "ge", above)))):
        scanned = Not(Not(where))  # the same rows, of which no fragment is left out
        assert names_few(where)
        assert not names_few(scanned)
        assert stored.read("experiences", columns, where).equals(stored.read("experiences", columns, scanned))


def test_a_filter_that_many_rows_may_pass_is_scanned() -> None:
    named = Compare("seq", "eq", 1)
    many = [
        None,
        Compare("seq", "ge", 1),
        Not(named),
        Or((named, Compare("reward", "ge", 0.5))),
        Compare("run_id", "eq", "r"),
        In("seq", tuple(range(1_000))),
    ]
    assert not any(map(names_few, many))


@pytest.mark.slow
def test_experiences_named_by_number_are_not_searched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(*_: Any, **__: Any) -> Any:
        raise AssertionError("a scan")

    folder = tmp_path / "buffer"
    with Buffer(folder) as owner, Buffer(folder, read_only=True) as buffer:
        owner.append([make_experience(n) for n in range(6)])
        absent = buffer.read("experiences", ["seq"], In("seq", (2, 6)))
        monkeypatch.setattr("rft_data.buffer.table_rows.few_rows", searched)
        found = buffer.read("experiences", ["reward"], In("seq", (4, 1, 4)))
        assert found.equals(buffer.read("experiences", ["reward"]).take([1, 4]))
        assert buffer.read("experiences", where=Compare("seq", "eq", 3))["seq"].to_pylist() == [3]
    assert absent["seq"].to_pylist() == [2]
