"""Whole rows that leave the buffer are compared with their digest, and the row that differs is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.errors import IntegrityError
from rft_data.core.filters import Compare
from rft_data.core.rows import PreferencePair, Task
from rft_data.core.schema import EXPERIENCES, PREFERENCES, TASKS
from rft_data.exchange.formats.exporting import export
from rft_data.reading.query import query
from tests.rft_data.conftest import make_experience

TASK = Task("arith", ({"role": "user", "content": "1+1="},), "2")
PAIR = PreferencePair(
    source="mined",
    taskset="arith",
    task_id="t0",
    messages=({"role": "user", "content": "1+1="},),
    chosen=({"role": "assistant", "content": "2"},),
    rejected=({"role": "assistant", "content": "3"},),
)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buffer]:
    """The text of row 1, a task and a pair have changed since they were stored, as by a flipped bit."""
    with Buffer(tmp_path_factory.mktemp("whole") / "buffer") as buffer:
        buffer.append([make_experience(0), make_experience(2)])
        buffer.add_tasks([TASK])
        buffer.add_preferences([PAIR])
        sound = buffer.read("experiences").slice(1, 1)
        store = buffer._store
        store.add("tasks", changed(buffer.read("tasks"), TASKS, "answer", "altered"))
        altered = '[{"content":"altered","role":"user"}]'
        store.add("preferences", changed(buffer.read("preferences"), PREFERENCES, "messages", altered))
        forged = changed(sound, EXPERIENCES, "completion_text", "altered")
        forged = changed(forged, EXPERIENCES, "experience_id", make_experience(3).experience_id)
        store.add("experiences", changed(forged, EXPERIENCES, "seq", 2))
        yield buffer


def changed(rows: pa.Table, schema: pa.Schema, name: str, value: object) -> pa.Table:
    place = schema.get_field_index(name)
    return rows.set_column(place, schema.field(name), pa.array([value], schema.field(name).type))


READS: dict[str, Callable[[Buffer, Path], object]] = {
    "read": lambda buffer, _: buffer.read("experiences"),
    "filtered": lambda buffer, _: buffer.read(
        "experiences", None, Compare("completion_text", "eq", "altered")
    ),
    "batches": lambda buffer, _: list(buffer.batches("experiences")),
    "tail": lambda buffer, _: buffer.tail("experiences", 2),
    "named": lambda buffer, _: buffer.read("experiences", EXPERIENCES.names[::-1]),
    "sft": lambda buffer, path: export(buffer, path / "x.jsonl", format="sft-messages"),
    "rft": lambda buffer, path: export(buffer, path / "x.parquet", format="rft"),
    "query": lambda buffer, _: query(buffer, "select * from experiences"),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", READS)
def test_a_damaged_row_does_not_leave_the_buffer_and_is_named(
    damaged: Buffer, tmp_path: Path, how: str
) -> None:
    name = make_experience(3).experience_id
    with pytest.raises(IntegrityError, match=rf"row 2 \('{name}'\) of .* does not match its digest"):
        READS[how](damaged, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["tasks", "preferences"])
def test_tasks_and_pairs_are_compared_with_their_ids(damaged: Buffer, tmp_path: Path, name: str) -> None:
    key = damaged.read(name, [{"tasks": "task_id", "preferences": "preference_id"}[name]])[0][1].as_py()
    with pytest.raises(IntegrityError, match=f"'{key}' of table '{name}' .* does not match its id"):
        export(damaged, tmp_path / "x.jsonl", format="rft", table=name)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["head"], ["search", "altered", "--index"]])
def test_the_commands_that_show_rows_name_it_too(damaged: Buffer, command: list[str]) -> None:
    words = ["buffer", command[0], str(damaged.root), *command[1:]]
    if "--index" in command:
        damaged.close()
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "row 2" in result.stderr


@pytest.mark.slow
def test_single_columns_and_sound_rows_are_read_as_before(damaged: Buffer) -> None:
    with Buffer(damaged.root, read_only=True) as buffer:
        assert buffer.read("experiences", ["completion_text"]).column(0).to_pylist()[2] == "altered"
        assert buffer.read("experiences", None, Compare("seq", "lt", 2)).num_rows == 2
        sql = "select * replace (reward + 1 as reward) from experiences where seq < 2"
        assert query(buffer, sql).rows["reward"].to_pylist() == [2.0, 2.0]
