"""CSV, Parquet, Arrow, dataset folders and hub names as sources."""

import random
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import MissingFileError, RecipeError, RowError
from rft_data.exchange.formats import import_into
from rft_data.exchange.formats.inputs import open_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def found(path: Path | str) -> list:
    return list(open_source(path).rows)


def test_csv_rows_carry_the_line_they_begin_at(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(
        '\ufeffquestion,answer\n"a\nb","c ""d"""\nonly one\n\nx,\xe9\r\ny,'.encode() + b'\xff\n"\x00",z\n'
    )
    rows = found(path)
    assert [row.place for row in rows] == [f"{path}:{line}" for line in (2, 4, 6, 7, 8)]
    assert rows[0].row == {"question": "a\nb", "answer": 'c "d"'}
    assert (rows[1].row, rows[1].reason) == (None, "1 cells under 2 columns")
    assert rows[2].row == {"question": "x", "answer": "é"}


def test_csv_text_that_is_no_utf8_is_a_bad_row(tmp_path: Path, buffer: Buffer) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"question,answer\na,1\nb,\xff\nc,3\n")
    report = import_into(buffer, path)
    assert (report.stored, report.quarantined) == (2, 1)
    assert report.problems == [f"{path}:3: answer holds a lone surrogate, which is not valid Unicode"]


def test_csv_with_broken_quotes_ends_in_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('a,b\n1,2\n3,"4\n5,6\n')
    with pytest.raises(RowError, match=r"rows.csv:3: the file cannot be read on: unexpected end of data"):
        found(path)
    path.write_text("a,a\n1,2\n")
    with pytest.raises(RowError, match="has a column twice"):
        found(path)


def test_a_cell_larger_than_pythons_csv_allows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a\n" + "x" * 200_000 + "\n")
    assert len(found(path)[0].row["a"]) == 200_000


@pytest.mark.slow
def test_parquet_values_become_json_or_a_reason(tmp_path: Path, buffer: Buffer) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table(
        {
            "question": ["a", "b", "c", "d"],
            "answer": ["1", "2", "3", "4"],
            "score": [0.5, float("nan"), None, 1.0],
            "at": pa.array([datetime(2026, 1, 2, tzinfo=UTC)] * 4, pa.timestamp("us", tz="UTC")),
            "cost": pa.array([Decimal("1.50")] * 4, pa.decimal128(5, 2)),
            "took": pa.array([None, None, 5, None], pa.duration("s")),
        }
    )
    pq.write_table(table, path)
    report = import_into(buffer, path, taskset="set")
    assert (report.stored, report.quarantined) == (2, 2)
    assert report.problems == [
        f"{path}:2: score is nan; JSON has no such number",
        f"{path}:3: took is timedelta; JSON has no such value",
    ]
    kept = [task.metadata for task in buffer.tasks()]
    assert kept[0] == {"score": 0.5, "at": "2026-01-02T00:00:00+00:00", "cost": "1.50"}


def test_parquet_text_that_is_no_utf8_is_one_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    bad = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    pq.write_table(pa.table({"text": bad}), path)
    rows = found(path)
    assert [row.row for row in rows] == [{"text": "a"}, None, {"text": "c"}]
    assert rows[1].place == f"{path}:2"


@pytest.mark.slow
def test_a_file_that_is_not_what_its_name_says_is_named(tmp_path: Path) -> None:
    for name in ("rows.parquet", "rows.arrow"):
        (tmp_path / name).write_bytes(b"no such thing")
        with pytest.raises(RowError, match=f"{name}: the file cannot be read on"):
            found(tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("opener", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_files_of_both_kinds_are_read(tmp_path: Path, opener) -> None:
    path = tmp_path / "rows.arrow"
    table = pa.table({"text": [str(i) for i in range(2500)]})
    with pa.OSFile(str(path), "wb") as sink, opener(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=700)
    rows = found(path)
    assert [row.row["text"] for row in rows] == table.column("text").to_pylist()
    assert rows[-1].place == f"{path}:2500"


def damaged(path: Path, opener) -> None:
    """Three batches of ten rows; in the last, the first offset of the texts' list points far away."""
    table = pa.table({"texts": [[str(i)] for i in range(30)]})
    with pa.OSFile(str(path), "wb") as sink, opener(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    content = path.read_bytes()
    offsets = np.arange(11, dtype=np.int32).tobytes()
    far = np.full(10, 1 << 30, np.int32).tobytes()
    at = content.rindex(offsets)
    path.write_bytes(content[: at + 4] + far + content[at + 4 + len(far) :])


@pytest.mark.slow
@pytest.mark.parametrize("opener", [pa.ipc.new_stream, pa.ipc.new_file])
def test_a_damaged_arrow_file_is_read_to_the_damage_and_crashes_nothing(tmp_path: Path, opener) -> None:
    path = tmp_path / "rows.arrow"
    damaged(path, opener)
    rows = []
    with pytest.raises(RowError, match=r"rows.arrow: the file cannot be read on: .*[Oo]ffset"):
        rows += open_source(path).rows
    assert [row.row for row in rows] == [{"texts": [str(i)]} for i in range(20)]


@pytest.mark.heavy
@pytest.mark.parametrize("opener", [pa.ipc.new_stream, pa.ipc.new_file])
def test_an_arrow_file_with_any_byte_flipped_gives_rows_or_one_error(tmp_path: Path, opener) -> None:
    whole, path = tmp_path / "whole.arrow", tmp_path / "rows.arrow"
    texts = [None if n % 7 == 0 else f"text {n}" for n in range(40)]
    parts = [[{"role": "user", "n": n}] * (n % 3) for n in range(40)]
    kinds = pa.array(["a", "b"] * 20).dictionary_encode()
    table = pa.table(
        {"text": texts, "list": [[n] * (n % 4) for n in range(40)], "parts": parts, "kind": kinds}
    )
    with pa.OSFile(str(whole), "wb") as sink, opener(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=16)
    content, draw = whole.read_bytes(), random.Random(7)  # noqa: S311 - no secret
    reasons = []
    for _ in range(40):
        at, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
        path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
        rows = []
        try:
            rows += open_source(path).rows
        except RowError as err:
            reasons.append(str(err))
        assert len(rows) <= 40, f"byte {at}, bit {bit}"
    assert 0 < len(reasons) < 40
    assert all(f"{path}: the file cannot be read on: " in reason for reason in reasons)


@pytest.mark.slow
def test_a_dataset_folder_with_a_damaged_file_is_refused(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"texts": [[str(i)] for i in range(30)]}).save_to_disk(tmp_path / "one")
    damaged(tmp_path / "one" / "data-00000-of-00001.arrow", pa.ipc.new_stream)
    with pytest.raises(RowError, match=r"one: the file cannot be read on: .*[Oo]ffset"):
        found(tmp_path / "one")


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("dataset_dict.json", b'{"splits": ["a"', "EOF while parsing"),
        ("dataset_dict.json", b'{"splitr": ["a"]}', "'splits' does not list names"),
        ("dataset_dict.json", b'{"splits": "a"}', "'splits' does not list names"),
        ("dataset_dict.json", b'{"splits": ["../many/a"]}', "'splits' does not list names"),
        ("dataset_dict.json", b'{"splits": ["c"]}', "'splits' names 'c', which is not there"),
        ("dataset_dict.json", b"[1]", "'splits' does not list names"),
        ("a/state.json", b'{"_data_files": [{"filename": "\xff"}]}', "invalid unicode"),
        ("a/state.json", b'{"_data_filer": []}', "'_data_files' does not list names"),
        ("a/state.json", b'{"_data_files": [{"filename": "b.arrow"}]}', "'b.arrow', which is not there"),
        ("a/state.json", b'{"_data_files": [["b.arrow"]]}', "'_data_files' does not list names"),
        ("a/state.json", b'{"_data_files": {"a": 1}}', "'_data_files' does not list names"),
        ("a/state.json", b"7", "'_data_files' does not list names"),
    ],
)
def test_a_dataset_folder_with_damaged_json_is_refused_by_the_files_name(
    tmp_path: Path, file: str, text: bytes, reason: str
) -> None:
    datasets.DatasetDict({"a": datasets.Dataset.from_dict({"x": [1]})}).save_to_disk(tmp_path / "many")
    (tmp_path / "many" / file).write_bytes(text)
    with pytest.raises(RowError, match=f"{file}: the file cannot be read on: .*{reason}"):
        open_source(tmp_path / "many")


@pytest.mark.heavy
def test_what_says_nothing_about_the_rows_of_a_dataset_folder_may_be_damaged(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    datasets.Dataset.from_dict({"x": [1, 2]}).save_to_disk(saved, num_shards=2)
    (saved / "dataset_info.json").write_bytes(b"\xff{")
    first = saved / "data-00000-of-00002.arrow"
    first.write_bytes(
        first.read_bytes().replace(b'{"features"', b'{"featurer"').replace(b'"dtype"', b'\xffdtype"')
    )
    assert [row.row for row in found(saved)] == [{"x": 1}, {"x": 2}]


@pytest.mark.slow
def test_arrow_text_that_is_no_utf8_is_one_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    bad = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    part = pa.StructArray.from_arrays([bad], ["text"])
    table = pa.table({"parts": pa.ListArray.from_arrays([0, 1, 2, 3], part)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert [row.row for row in found(path)] == [{"parts": [{"text": "a"}]}, None, {"parts": [{"text": "c"}]}]


def test_columns_of_arrows_json_type_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    kind = pa.list_(pa.json_())
    values = pa.array([['{"a": null}', "1"], None, ["oops"]], pa.list_(pa.string())).cast(kind)
    pq.write_table(pa.table({"x": values}), path)
    rows = found(path)
    assert [row.row for row in rows] == [{"x": [{"a": None}, 1]}, {"x": None}, None]
    assert "a JSON column holds what is not JSON" in rows[2].reason


@pytest.mark.slow
def test_dataset_folders_are_read_and_a_split_is_chosen(tmp_path: Path) -> None:
    parts = {
        name: datasets.Dataset.from_dict({"text": [f"{name} {i}" for i in range(3)]}) for name in ("a", "b")
    }
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "many")
    parts["a"].save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"a": parts["a"]}).save_to_disk(tmp_path / "single")
    assert [row.row for row in found(tmp_path / "one")] == [{"text": f"a {i}"} for i in range(3)]
    assert [row.row["text"] for row in found(f"{tmp_path}/many:b")] == ["b 0", "b 1", "b 2"]
    assert len(found(tmp_path / "single")) == 3
    with pytest.raises(MissingFileError, match="holds the splits a, b; choose one"):
        found(tmp_path / "many")
    with pytest.raises(MissingFileError, match="holds the splits a, b, not 'c'"):
        found(f"{tmp_path}/many:c")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nothing.jsonl", MissingFileError, "there is no file or dataset folder"),
        ("folder", MissingFileError, "not one that datasets' save_to_disk wrote"),
        ("rows.xlsx", RecipeError, "files called '.xlsx' are not read"),
        ("rows.parquet.gz", RecipeError, "files called '.gz' are not read"),
        ("hf://gsm8k", RecipeError, "is not a dataset of the hub; write hf://org/name:split@revision"),
        ("hf://openai/gsm8k", RecipeError, "is not a dataset of the hub"),
    ],
)
def test_a_source_that_cannot_be_opened_says_what_can(
    tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "folder").mkdir()
    for file in ("rows.xlsx", "rows.parquet.gz"):
        (tmp_path / file).write_bytes(b"")
    with pytest.raises(error, match=message):
        open_source(name if name.startswith("hf:") else tmp_path / name)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list:
    """The hub's two functions, replaced by ones that record their arguments: tests have no network."""
    asked: list = []

    class Api:
        def dataset_info(self, repo: str, revision: str | None = None) -> object:
            asked.append((repo, revision))
            return type("Info", (), {"sha": COMMIT})()

    def load_dataset(repo: str, **arguments: object) -> datasets.Dataset:
        asked.append((repo, arguments))
        return datasets.Dataset.from_dict({"question": ["1+1="], "answer": ["#### 2"]})

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    return asked


@pytest.mark.parametrize(
    ("name", "config", "revision"),
    [
        ("hf://openai/gsm8k/main:test", "main", None),
        ("hf://openai/gsm8k:test@v1.0", None, "v1.0"),
        ("hf://openai/gsm8k/main:test@refs/convert/parquet", "main", "refs/convert/parquet"),
        (f"hf://openai/gsm8k:test@{COMMIT}", None, COMMIT),
    ],
)
def test_a_hub_dataset_is_read_at_a_commit_which_is_recorded(
    buffer: Buffer, hub: list, name: str, config: str | None, revision: str | None
) -> None:
    report = import_into(buffer, name)
    pinned = {"name": config, "split": "test", "revision": COMMIT}
    assert hub == [*([] if revision == COMMIT else [("openai/gsm8k", revision)]), ("openai/gsm8k", pinned)]
    whole = "openai/gsm8k" + (f"/{config}" if config else "")
    assert report.source == f"hf://{whole}:test@{COMMIT}"
    assert (report.taskset, report.stored) == ("openai/gsm8k", 1)
    assert report.source in buffer.read("runs").column("recipe").to_pylist()[0]


@pytest.mark.parametrize("name", ["hf://openai/gsm8k:test", f"hf://openai/gsm8k:test@{COMMIT}"])
def test_offline_the_error_says_what_to_do(name: str) -> None:
    with pytest.raises(
        MissingFileError, match=r"hf://openai/gsm8k.* cannot be read: .*Offline, give a dataset folder"
    ):
        open_source(name)
