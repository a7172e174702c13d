"""What the buffer holds in memory beside its tables: the newest rows, the ids; digests of long rows."""

import numpy as np
import pyarrow as pa
import pytest

from rft_data.buffer import index
from rft_data.buffer.hot import HotTail
from rft_data.buffer.index import IdIndex
from rft_data.core.codec import to_table
from rft_data.core.digests import row_digests, trained_digests
from rft_data.core.schema import EXPERIENCES
from tests.rft_data.conftest import make_experience
from tests.rft_data.core.test_schema import reference_digest


def numbered(start: int, rows: int) -> pa.Table:
    return pa.table({"seq": pa.array(range(start, start + rows), pa.int64())})


@pytest.mark.slow
def test_newest_rows_of_small_commits_are_held_as_few_tables() -> None:
    tail, start = HotTail(8 * 3000), 0
    for rows in [1] * 2000 + [700, 3] + [5] * 400:
        tail.add(start, numbered(start, rows))
        start += rows
    assert len(tail._chunks) < 100
    cold, tables = tail.split(np.arange(start))
    held = [seq for table in tables for seq in table.column("seq").to_pylist()]
    assert cold.tolist() + held == list(range(start))
    assert 2000 <= len(held) <= 3000
    wanted = np.array([start - 2900, start - 1500, start - 3, start - 1])
    cold, tables = tail.split(wanted)
    assert [*cold.tolist(), *(seq for t in tables for seq in t.column("seq").to_pylist())] == wanted.tolist()


def test_a_gap_empties_the_tail() -> None:
    tail = HotTail(1 << 20)
    for start in [*range(70), 100]:
        tail.add(start, numbered(start, 1))
    cold, tables = tail.split(np.array([3, 69, 100]))
    assert cold.tolist() == [3, 69]
    assert [table.column("seq").to_pylist() for table in tables] == [[100]]


def test_index_finds_what_a_dict_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_MERGE_AT", 16)
    rng = np.random.default_rng(0)
    found, model = IdIndex(), dict[str, list[int]]()
    for seq in range(500):
        name = f"id{rng.integers(0, 300)}"
        found.add([name], [seq])
        model.setdefault(name, []).append(seq)
    assert len(found) == 500
    asked = [f"id{number}" for number in range(310)]
    wanted = [(place, seq) for place, name in enumerate(asked) for seq in model.get(name, ())]
    assert sorted(found.candidates(asked)) == wanted


def test_digests_of_long_rows_are_what_their_definition_says() -> None:
    rows = []
    for number, tokens in enumerate((2000, 4, 900, 900)):
        values = np.arange(tokens, dtype=np.int32)
        rows.append(
            make_experience(
                number,
                token_ids=values,
                action_mask=(values % 2).astype(np.int8),
                logprobs=None if number == 2 else -values.astype(np.float32),
                teacher_logprobs=-values.astype(np.float32) if number != 1 else None,
                completion_text="\u00e9" * tokens,
                payloads=("a", "b") if number else (),
            )
        )
    table = to_table(rows, EXPERIENCES)
    expected = [reference_digest(row) for row in table.to_pylist()]
    assert row_digests(table) == expected
    assert row_digests(table.slice(1, 2)) == expected[1:3]
    assert row_digests(pa.concat_tables([table.slice(2), table.slice(0, 2)])) == expected[2:] + expected[:2]
    assert trained_digests(table.slice(3)) == [expected[3][:16]]
