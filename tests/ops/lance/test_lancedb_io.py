"""Source and sink of dj-process: rows come out of a buffer and go into a table of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import lancedb
import pyarrow as pa
import pytest
import yaml

from ops.runtime.hygiene import registry
from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError, MissingFileError, RecipeError
from rft_data.core.rows import Task
from rft_data.core.schema import EXPERIENCES
from tests.rft_data.conftest import make_experience


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A buffer of 40 experiences in groups of four, rewards 0, 1, 0, 1, ...; every tenth has none."""
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append(
            [
                make_experience(
                    n,
                    group_id=f"g{n // 4}",
                    reward=None if n % 10 == 9 else float(n % 2),
                    token_ids=[5, 6, n, n + 1],
                    completion_text=f"it's answer {n}",
                )
                for n in range(40)
            ]
        )
        buffer.add_tasks(
            [Task("arith", ({"role": "user", "content": f"{n}+1="},), str(n + 1)) for n in range(3)]
        )
    return tmp_path / "buffer"


def formatter(**args):
    registry()
    from data_juicer.format.formatter import FORMATTERS

    return FORMATTERS.modules["lancedb_formatter"](**args)


@pytest.mark.slow
def test_the_source_reads_what_a_filter_lets_through_with_its_types(stored: Path):
    made = formatter(buffer=str(stored), where="reward >= 0.5 and completion_text contains 'it''s'")
    rows = made.load_dataset().with_format("arrow")[:]
    assert rows.num_rows == sum(n % 2 == 1 and n % 10 != 9 for n in range(40))
    assert rows.schema.names == EXPERIENCES.names
    assert rows.schema.field("token_ids").type == pa.list_(pa.int32())
    some = formatter(buffer=str(stored), columns=["seq", "reward"], limit=3).load_dataset()
    assert some.with_format("arrow")[:].column_names == ["seq", "reward"]
    assert len(some) == 3


@pytest.mark.slow
def test_the_source_reads_tasks_as_task_operators_want_them(stored: Path):
    rows = formatter(buffer=str(stored), table="tasks").load_dataset().with_format("arrow")[:]
    assert rows["text"].to_pylist() == ["0+1=", "1+1=", "2+1="]
    assert rows["played_age"].to_pylist() == [None, None, None]


def test_mistakes_are_named_before_anything_is_read(stored: Path, tmp_path: Path):
    with pytest.raises(RecipeError, match="no table 'experience'; did you mean 'experiences'"):
        formatter(buffer=str(stored), table="experience")
    with pytest.raises(RecipeError, match="no column 'rewards'; did you mean 'reward'"):
        formatter(buffer=str(stored), columns=["rewards"])
    with pytest.raises(RecipeError, match="the filter is not valid"):
        formatter(buffer=str(stored), where="reward > 0; drop table x")
    with pytest.raises(MissingFileError, match="there is no buffer"):
        formatter(buffer=str(tmp_path / "none")).load_dataset()


def test_local_files_still_load_beside_the_source(tmp_path: Path):
    """A formatter without SUFFIXES makes every load of a local file fail."""
    registry()
    from data_juicer.format.load import load_formatter

    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    assert type(load_formatter(str(tmp_path / "rows.jsonl"))).__name__ == "JsonFormatter"


def test_the_sink_creates_refuses_appends_and_overwrites(operator, tmp_path: Path):
    rows = pa.table({"seq": [1, 2], "stats": [{"a": 1}, None], "ids": [[1], [2, 3]]})
    where = {"uri": str(tmp_path / "out"), "table": "scored"}
    op = operator("lancedb_write_mapper", **where)
    assert op.process_table(rows).equals(rows)
    op.process_table(rows)
    with pytest.raises(ConflictError, match="has a table 'scored' already"):
        operator("lancedb_write_mapper", **where).process_table(rows)
    operator("lancedb_write_mapper", mode="append", **where).process_table(rows)
    read = lancedb.connect(tmp_path / "out").open_table("scored").to_arrow()
    assert read["seq"].to_pylist() == [1, 2] * 3
    assert read["stats"].to_pylist() == ['{"a": 1}', None] * 3
    operator("lancedb_write_mapper", mode="overwrite", **where).process_table(rows)
    assert lancedb.connect(tmp_path / "out").open_table("scored").count_rows() == 2


def test_the_sink_never_writes_into_a_buffer(operator, stored: Path):
    with pytest.raises(ValueError, match="is a buffer"):
        operator("lancedb_write_mapper", uri=str(stored), table="mine")
    with pytest.raises(ValueError, match="wanted mode"):
        operator("lancedb_write_mapper", uri="x", table="y", mode="replace")


DJ_PROCESS = Path(sys.executable).with_name("dj-process")


@pytest.mark.heavy
def test_dj_process_reads_a_buffer_and_writes_a_table(stored: Path, tmp_path: Path):
    """Data-Juicer's own executor: our source, its operator and ours, our sink."""
    recipe = {
        "project_name": "lance",
        "executor_type": "default",
        "np": 1,
        "use_cache": False,
        "open_monitor": False,
        "text_keys": "completion_text",
        "generated_dataset_config": {
            "type": "lancedb_formatter",
            "buffer": str(stored),
            "where": "reward is not null",
        },
        "export_path": str(tmp_path / "exported" / "rows.jsonl"),
        "work_dir": str(tmp_path / "work"),
        "process": [
            {"text_length_filter": {"min_len": 14}},
            {"reward_variance_filter": {}},
            {"grpo_advantage_mapper": {}},
            {"lancedb_write_mapper": {"uri": str(tmp_path / "out"), "table": "annotated"}},
        ],
    }
    config = tmp_path / "recipe.yaml"
    config.write_text(yaml.safe_dump(recipe))
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [DJ_PROCESS, "--config", str(config)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = lancedb.connect(tmp_path / "out").open_table("annotated").to_arrow()
    # texts of numbers below 10 are too short
    wanted = [n for n in range(10, 40) if n % 10 != 9]
    assert sorted(rows["seq"].to_pylist()) == wanted
    assert rows.schema.field("token_ids").type == pa.list_(pa.int32())
    advantages = dict(zip(rows["seq"].to_pylist(), rows["advantage"].to_pylist(), strict=True))
    assert advantages[12] == [pytest.approx(-0.866, abs=1e-3)]
    assert json.loads(rows["__dj__stats__"][0].as_py())["text_len"] >= 14
    exported = (tmp_path / "exported" / "rows.jsonl").read_text().splitlines()
    assert len(exported) == len(wanted)
    with Buffer(stored, read_only=True) as buffer:
        assert len(buffer) == 40
