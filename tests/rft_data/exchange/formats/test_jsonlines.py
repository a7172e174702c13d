"""Strict JSON: a bad row is named with its line and costs no other; a broken file ends in an error."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest

from rft_data.core.errors import RowError
from rft_data.exchange.formats import jsonlines
from rft_data.exchange.formats.jsonlines import read_json

GOOD = '{"a": 1}'
BAD = [
    ('{"a": NaN}', "NaN is not JSON"),
    ('{"a": -Infinity}', "-Infinity is not JSON"),
    ('{"a": 1e999}', "the number 1e999 is too large"),
    ('{"a": 1, "a": 2}', "the key 'a' is there more than once"),
    ('{"b": {"a": 1, "a": 2}}', "the key 'a' is there more than once"),
    ("[1]", "found list, wanted an object"),
    ("null", "found NoneType, wanted an object"),
]
UNPARSABLE = [
    ('{"a": 1', "not JSON: Expecting ',' delimiter at column 8"),
    ('{"a": 1} x', "something follows the object, at column 9"),
    ('  {"a": 1 \t', "not JSON: Expecting ',' delimiter at column 10"),
    ("{'a': 1}", "not JSON: Expecting property name"),
    ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deep"),
    ('{"a": ' + "9" * 5000 + "}", "not JSON: Exceeds the limit"),
]


def rows_of(path: Path) -> list:
    return [found.row for found in read_json(path)]


@pytest.mark.parametrize(("line", "reason"), BAD + UNPARSABLE)
def test_a_bad_line_is_named_and_the_others_are_read(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}", encoding="utf-8")
    found = list(read_json(path))
    assert [item.row for item in found] == [{"a": 1}, None, {"a": 1}]
    assert found[1].place == f"{path}:3"
    assert found[1].reason.startswith(reason)
    assert found[1].excerpt == line[:4096]


@pytest.mark.parametrize(("element", "reason"), BAD)
def test_a_bad_element_of_an_array_is_named_and_the_others_are_read(
    tmp_path: Path, element: str, reason: str
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(f"[\n{GOOD},\n\n  {element}\n,{GOOD}]\n", encoding="utf-8")
    found = list(read_json(path))
    assert [item.row for item in found] == [{"a": 1}, None, {"a": 1}]
    assert (found[1].place, found[1].reason) == (f"{path}:4", reason)
    assert found[2].place == f"{path}:5"


@pytest.mark.parametrize("text", ["[]", " [ ] ", "\ufeff[]"])
def test_an_empty_array_has_no_rows(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text, encoding="utf-8")
    assert rows_of(path) == []


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ('[{"a": 1},\n{"a": 2', 2, "delimiter"),
        ('[{"a": 1}\n', 2, "found '', wanted ',' or ']'"),
        ('[{"a": 1} {"a": 2}]', 1, "found '{', wanted ',' or ']'"),
        ('[{"a": 1},\n]', 2, "Expecting value"),
        ('[{"a": 1},\n', 2, "Expecting value"),
    ],
)
def test_a_broken_array_gives_what_came_before_and_then_an_error(
    tmp_path: Path, text: str, place: int, problem: str
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    reader = read_json(path)
    assert next(reader).row == {"a": 1}
    with pytest.raises(RowError, match=rf"rows.json:{place}: the JSON cannot be read on") as caught:
        list(reader)
    assert problem in str(caught.value)


def test_an_array_is_read_through_a_small_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonlines, "_CHUNK", 7)
    rows = [{"text": "ü" * (i % 50), "n": i, "deep": [[{}]]} for i in range(200)]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
    found = list(read_json(path))
    assert [item.row for item in found] == rows
    lines = path.read_text(encoding="utf-8").splitlines()
    assert all(lines[int(item.place.rpartition(":")[2]) - 1].strip() == "{" for item in found)


def test_what_is_no_utf8_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "\xff"}\n\xef\xbb\xbf{"a": 2}\n{"a": "\xe2\x80\xa8"}\r\n')
    found = list(read_json(path))
    assert [item.row for item in found] == [{"a": 1}, None, None, {"a": "\u2028"}]
    assert "not UTF-8: invalid start byte at byte 7" in found[1].reason


def test_a_byte_order_mark_at_the_beginning_is_no_part_of_the_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n')
    assert rows_of(path) == [{"a": 1}]


def test_a_line_that_is_too_long_is_skipped_without_being_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonlines, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(jsonlines, "_CHUNK", 64)
    path = tmp_path / "rows.jsonl"
    exact = '{"a": "' + "x" * 91 + '"}'
    path.write_text("\n".join([GOOD, '{"a": "' + "x" * 500 + '"}', exact, GOOD, "y" * 300]))
    found = list(read_json(path))
    assert len(exact) == 100
    assert [item.row is None for item in found] == [False, True, False, False, True]
    assert (found[1].reason, found[1].place) == ("the line has more than 100 bytes", f"{path}:2")
    assert found[3].place == f"{path}:4"


@pytest.mark.parametrize(
    ("suffix", "codec"), [(".jsonl.gz", "gzip"), (".jsonl.zst", "zstd"), (".json.gz", "gzip")]
)
def test_packed_files_are_read_also_when_they_have_several_parts(
    tmp_path: Path, suffix: str, codec: str
) -> None:
    path = tmp_path / f"rows{suffix}"
    part = b"".join(b'{"a": %d}\n' % i for i in range(1000))
    path.write_bytes(b"".join(bytes(pa.compress(part, codec=codec)) for _ in range(1)))
    whole = path.read_bytes()
    path.write_bytes(whole + whole)
    assert [row["a"] for row in rows_of(path)] == [*range(1000), *range(1000)]


@pytest.mark.slow
def test_a_truncated_archive_ends_in_an_error_after_the_rows_it_still_has(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wb") as stream:
        for i in range(200_000):
            stream.write(b'{"a": %d}\n' % (i * 7919 % 100_003))
    path.write_bytes(path.read_bytes()[:-2000])
    reader = read_json(path)
    count = 0
    with pytest.raises(RowError, match=r"rows.jsonl.gz:\d+: the file cannot be read on: Truncated"):  # noqa: PT012
        for found in reader:
            assert found.row is not None
            count += 1
    assert 1000 < count < 200_000
