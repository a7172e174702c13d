"""What an export writes, leaves out, and says of itself."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RowError, UnknownComponentError
from rft_data.core.filters import Compare
from rft_data.core.lock import Lock
from rft_data.core.rows import Experience, TaskKey, experience_id_of
from rft_data.exchange.formats import export, import_into
from tests.rft_data.exchange.formats.conftest import jsonl

USER, BOT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}


def rollout(group: str, member: int, reward: float | None, **changes: Any) -> Experience:
    said = changes.pop("said", f"{group} {member}")
    prompt = changes.pop("prompt", f"prompt of {group}")
    fields: dict[str, Any] = {
        "experience_id": experience_id_of(
            "run", TaskKey("set", "t"), 0, group, member, changes.get("turn", 0)
        ),
        "source": "rollout",
        "run_id": "run",
        "taskset": "set",
        "task_id": "t",
        "group_id": group,
        "member": member,
        "token_ids": [1, 2],
        "prompt_length": 1,
        "action_mask": [0, 1],
        "logprobs": [0.0, -1.0],
        "version_min": 2 + member,
        "version_max": 3 + member,
        "messages": ({"role": "user", "content": prompt}, {"role": "assistant", "content": said}),
        "prompt_messages": 1,
        "completion_text": said,
        "reward": reward,
        **changes,
    }
    return Experience(**fields)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_dpo_takes_the_best_and_the_worst_of_each_group(buffer: Buffer, tmp_path: Path) -> None:
    rewards = {
        "a": [0.5, 1.0, 0.0, 1.0],
        "b": [0.5, 0.5],
        "c": [None, 1.0, 0.75],
        "d": [0.0, 0.25],
        "e": [None],
    }
    buffer.append([rollout(g, m, r) for g, rs in rewards.items() for m, r in enumerate(rs)])
    report = export(buffer, tmp_path / "dpo.jsonl", format="dpo", margin=0.2)
    rows = lines(tmp_path / "dpo.jsonl")
    assert [(r["chosen"][0]["content"], r["rejected"][0]["content"]) for r in rows] == [
        ("a 1", "a 2"),
        ("c 1", "c 2"),
        ("d 1", "d 0"),
    ]
    assert rows[0]["prompt"] == [{"role": "user", "content": "prompt of a"}]
    assert (rows[1]["score_chosen"], rows[1]["score_rejected"]) == (1.0, 0.75)
    assert (report.selected, report.written) == (4, 3)
    assert report.skipped == {"no pair in the group: its rewards differ by no more than 0.2": 1}
    assert export(buffer, tmp_path / "wide.jsonl", format="dpo", margin=0.25).written == 1
    first = ["a", "b", "c", "d"]
    low = export(
        buffer, tmp_path / "x.jsonl", format="dpo", table="experiences", where=Compare("reward", "ge", 0.5)
    )
    assert [r["prompt"][0]["content"][-1] for r in lines(tmp_path / "x.jsonl")] == ["a", "c"]
    assert low.selected + 1 == len(first)


def test_dpo_leaves_out_pairs_that_teach_nothing(buffer: Buffer, tmp_path: Path) -> None:
    buffer.append(
        [
            rollout("same", 0, 1.0, said="x"),
            rollout("same", 1, 0.0, said="x"),
            rollout("steps", 0, 1.0, prompt="p"),
            rollout("steps", 1, 0.0, prompt="q"),
            rollout("eval", 0, 1.0, source="eval"),
            rollout("eval", 1, 0.0, source="eval"),
            rollout("good", 0, 1.0),
            rollout("good", 1, 0.0),
        ]
    )
    report = export(buffer, tmp_path / "dpo.jsonl", format="dpo")
    assert report.written == 1
    assert sorted(report.skipped) == [
        "the group's best and worst rows have different prompts (a step-wise workflow)",
        "the group's best and worst rows have the same answer",
    ]


@pytest.mark.slow
def test_dpo_puts_stored_pairs_first_and_gives_them_an_explicit_prompt(
    buffer: Buffer, tmp_path: Path
) -> None:
    pairs = [
        {"chosen": [USER, BOT], "rejected": [USER, {**BOT, "content": "no"}], "note": 1},
        {"prompt": [USER], "chosen": [BOT], "rejected": [{**BOT, "content": "never"}]},
        {"chosen": [BOT], "rejected": [{**BOT, "content": "no"}]},
        {"chosen": [USER, BOT], "rejected": [USER]},
    ]
    import_into(buffer, jsonl(tmp_path / "pairs.jsonl", pairs), format="trl-preference")
    buffer.append([rollout("a", 0, 1.0), rollout("a", 1, 0.0)])
    report = export(buffer, tmp_path / "dpo.jsonl", format="dpo")
    rows = lines(tmp_path / "dpo.jsonl")
    assert [row["rejected"][0]["content"] for row in rows] == ["no", "never", "a 1"]
    assert [row["prompt"] for row in rows[:2]] == [[USER], [USER]]
    assert set(rows[0]) == {"prompt", "chosen", "rejected"}
    assert report.skipped == {
        "chosen and rejected share no prompt": 1,
        "one answer is the beginning of the other; a pair needs two answers": 1,
    }


@pytest.mark.slow
def test_kto_needs_a_reward_and_labels_by_the_threshold(buffer: Buffer, tmp_path: Path) -> None:
    buffer.append([rollout("a", m, reward) for m, reward in enumerate([0.0, 0.5, 1.0, None])])
    report = export(buffer, tmp_path / "kto.jsonl", format="kto", threshold=0.75)
    assert [row["label"] for row in lines(tmp_path / "kto.jsonl")] == [False, False, True]
    assert report.skipped == {"the row has no reward yet": 1}


@pytest.mark.slow
def test_training_sets_hold_no_evaluation_rows_and_no_metadata(buffer: Buffer, tmp_path: Path) -> None:
    buffer.append(
        [
            rollout("a", 0, 1.0, metadata={"x": 1}),
            rollout("a", 1, 1.0, source="eval"),
            rollout("a", 2, 1.0, source="probe"),
        ]
    )
    tasks = [{"question": f"{i}+1=", "answer": str(i + 1)} for i in range(3)]
    import_into(buffer, jsonl(tmp_path / "train.jsonl", tasks[:2]), taskset="set")
    import_into(buffer, jsonl(tmp_path / "held.jsonl", tasks[2:]), taskset="set", split="heldout")
    report = export(buffer, tmp_path / "sft.jsonl", format="sft")
    assert [set(row) for row in lines(tmp_path / "sft.jsonl")] == [{"prompt", "completion"}]
    assert sum(report.skipped.values()) == 2
    assert export(buffer, tmp_path / "all.jsonl", format="trl-prompt-completion").written == 3
    report = export(buffer, tmp_path / "grpo.jsonl", format="grpo")
    assert [row["answer"] for row in lines(tmp_path / "grpo.jsonl")] == ["1", "2"]
    assert report.skipped == {"a task of split 'heldout' is not for training": 1}


@pytest.mark.slow
def test_sft_does_not_train_on_what_others_said(buffer: Buffer, tmp_path: Path) -> None:
    turns = [{"messages": [USER, BOT, USER, BOT]}, {"messages": [USER, BOT]}]
    import_into(buffer, jsonl(tmp_path / "rows.jsonl", turns))
    report = export(buffer, tmp_path / "sft.jsonl", format="sft")
    assert (report.written, list(report.skipped.values())) == (1, [1])
    assert "write it as sft-messages" in next(iter(report.skipped))
    assert export(buffer, tmp_path / "chat.jsonl", format="sft-messages").written == 2


@pytest.mark.slow
def test_text_and_messages_are_never_mixed_in_one_set(buffer: Buffer, tmp_path: Path) -> None:
    rows: list[Any] = [{"prompt": "p", "completion": "c"}, {"prompt": [USER], "completion": [BOT]}]
    import_into(buffer, jsonl(tmp_path / "rows.jsonl", rows))
    report = export(buffer, tmp_path / "sft.jsonl", format="sft")
    assert report.written == 1
    assert "prompt (messages), completion (messages) but the first row written has prompt (text)" in next(
        iter(report.skipped)
    )


@pytest.mark.slow
def test_where_chooses_the_rows(buffer: Buffer, tmp_path: Path) -> None:
    buffer.append([rollout("a", m, m / 10) for m in range(10)])
    report = export(buffer, tmp_path / "sft.jsonl", format="sft", where=Compare("reward", "ge", 0.7))
    assert (report.selected, report.written) == (3, 3)


@pytest.mark.slow
def test_every_selected_row_is_written_or_skipped(buffer: Buffer, tmp_path: Path) -> None:
    buffer.append(
        [rollout("a", m, [None, 1.0, 0.0][m % 3], source=["rollout", "eval"][m % 2]) for m in range(30)]
    )
    report = export(buffer, tmp_path / "kto.jsonl", format="kto")
    assert report.selected == 30
    assert report.selected == report.written + sum(report.skipped.values())
    assert report.written == len(lines(tmp_path / "kto.jsonl"))


@pytest.mark.slow
def test_an_export_is_not_replaced_unless_asked_for(buffer: Buffer, tmp_path: Path) -> None:
    buffer.append([rollout("a", 0, 1.0)])
    for name in ("sft.jsonl", "sft.parquet", "sft"):
        target = tmp_path / name
        export(buffer, target, format="sft")
        with pytest.raises(RecipeError, match="is there already; give another name, or overwrite=True"):
            export(buffer, target, format="sft")
        export(buffer, target, format="sft", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "buffer",
        "sft",
        "sft.jsonl",
        "sft.jsonl.README.md",
        "sft.parquet",
        "sft.parquet.README.md",
    ]


def test_a_folder_or_card_of_somebody_else_is_never_replaced(buffer: Buffer, tmp_path: Path) -> None:
    buffer.append([rollout("a", 0, 1.0)])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not lose")
    with pytest.raises(RecipeError, match="is a folder that no export wrote; it is not replaced"):
        export(buffer, tmp_path / "mine", format="sft", overwrite=True)
    (tmp_path / "sft.jsonl.README.md").write_text("mine")
    with pytest.raises(RecipeError, match="is a file that no export wrote"):
        export(buffer, tmp_path / "sft.jsonl", format="sft", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "do not lose"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft.jsonl", "sft.parquet", "sft"])
def test_an_export_that_fails_leaves_what_was_there(buffer: Buffer, tmp_path: Path, name: str) -> None:
    buffer.append([rollout("a", 0, 1.0)])
    export(buffer, tmp_path / name, format="sft")
    before = {
        p: p.read_bytes()
        for p in (tmp_path / name).parent.rglob("*")
        if p.is_file() and "buffer" not in p.parts
    }
    with pytest.raises(RowError, match="nothing to write"):
        export(buffer, tmp_path / name, format="sft", where=Compare("reward", "ge", 2.0), overwrite=True)
    after = {
        p: p.read_bytes()
        for p in (tmp_path / name).parent.rglob("*")
        if p.is_file() and "buffer" not in p.parts
    }
    assert after == before
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


@pytest.mark.slow
def test_nothing_to_write_says_why_and_where_rows_are(buffer: Buffer, tmp_path: Path) -> None:
    import_into(buffer, jsonl(tmp_path / "rows.jsonl", [{"question": "q", "answer": "1"}]))
    with pytest.raises(RowError, match=r"no row was selected\. There are rows in tasks: give table="):
        export(buffer, tmp_path / "out.jsonl", format="gsm8k")
    export(buffer, tmp_path / "out.jsonl", format="gsm8k", table="tasks")
    assert lines(tmp_path / "out.jsonl") == [{"question": "q", "answer": "1"}]
    import_into(buffer, jsonl(tmp_path / "prompts.jsonl", [{"prompt": [USER]}]))
    with pytest.raises(RowError, match="1 x the task has no reference answer"):
        export(
            buffer,
            tmp_path / "x.jsonl",
            format="gsm8k",
            table="tasks",
            where=Compare("taskset", "eq", "prompts"),
        )


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        (
            "x.jsonl",
            {"format": "stf"},
            UnknownComponentError,
            "format 'stf' is not known; did you mean 'sft'",
        ),
        ("x.xml", {"format": "sft"}, RecipeError, "files called '.xml' are not written"),
        ("x.csv", {"format": "openai"}, RecipeError, "format 'openai' does not fit CSV"),
        (
            "x.jsonl",
            {"format": "sft", "table": "tasks"},
            RecipeError,
            "is written from experiences, not from 'tasks'",
        ),
        ("x.jsonl", {"format": "dpo", "where": Compare("reward", "ge", 0.0)}, RecipeError, "say with table="),
    ],
)
def test_what_does_not_go_together_is_refused(
    buffer: Buffer, tmp_path: Path, name: str, arguments: dict, error: type[Exception], message: str
) -> None:
    buffer.append([rollout("a", 0, 1.0)])
    with pytest.raises(error, match=message):
        export(buffer, tmp_path / name, **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["buffer"]


@pytest.mark.slow
def test_csv_leaves_out_what_is_no_text(buffer: Buffer, tmp_path: Path) -> None:
    rows: list[Any] = [
        {"prompt": 'a,"b"\r\n', "completion": "c", "n": [1]},
        {"prompt": [USER], "completion": [BOT]},
    ]
    import_into(buffer, jsonl(tmp_path / "rows.jsonl", rows))
    report = export(buffer, tmp_path / "out.csv", format="trl-prompt-completion")
    assert list(report.skipped) == [
        "column 'prompt' is not plain text, as CSV needs; write .jsonl or .parquet"
    ]
    with (tmp_path / "out.csv").open(newline="") as stream:
        text = stream.read()
    assert text == '"prompt","completion","metadata"\n"a,""b""\r\n","c","{""n"":[1]}"\n'


@pytest.mark.slow
def test_simple_messages_are_plain_columns_and_only_the_rest_is_json(buffer: Buffer, tmp_path: Path) -> None:
    buffer.append([rollout("a", 0, 1.0)])
    export(buffer, tmp_path / "simple.parquet", format="sft")
    turn = [("role", pa.string()), ("content", pa.string())]
    simple = pq.read_schema(tmp_path / "simple.parquet").field("prompt").type
    assert [(part.name, part.type) for part in simple.value_type] == turn
    buffer.append([rollout("b", 0, 1.0, messages=({**USER, "name": "x"}, BOT))])
    export(buffer, tmp_path / "named.parquet", format="sft")
    schema = pq.read_schema(tmp_path / "named.parquet")
    assert str(schema.field("prompt").type.value_type) == "extension<arrow.json>"
    assert schema.field("completion").type == simple


def test_the_card_says_what_the_rows_are(buffer: Buffer, tmp_path: Path) -> None:
    buffer.append([rollout("a", m, [1.0, 0.0, None][m]) for m in range(3)])
    report = export(buffer, tmp_path / "kto.jsonl", format="kto", where=Compare("group_id", "eq", "a"))
    card = Path(report.card).read_text(encoding="utf-8")
    assert report.card == f"{tmp_path / 'kto.jsonl'}.README.md"
    for part in (
        "- buffer: `buffer`, 3 experiences when written",
        "- rows: 2 of 3 selected",
        "- policy versions: 2 to 4",
        "- 1: the row has no reward yet",
        "- tasksets: `set`",
        "- runs: `run`",
        "- sources: `rollout`",
        "- schema version: 3",
        "data_files='kto.jsonl'",
        '  data_files: "kto.jsonl"',
        "group_id",
    ):
        assert part in card, part


@pytest.mark.slow
def test_images_are_bytes_in_tables_and_data_uris_in_json(buffer: Buffer, tmp_path: Path) -> None:
    image = b"\x89PNG\r\n\x1a\n rest"
    table = pa.table(
        {"prompt": [[USER]], "completion": [[BOT]], "images": [[{"bytes": image, "path": None}]]}
    )
    pq.write_table(table, tmp_path / "in.parquet")
    import_into(buffer, tmp_path / "in.parquet", taskset="set")
    stored = buffer.read("experiences").drop_columns(["created_at"]).to_pylist()
    assert [buffer.payload(name) for name in stored[0]["payloads"]] == [("image/png", image)]
    for name in ("out.parquet", "out.jsonl", "out"):
        export(buffer, tmp_path / name, format="sft")
        with Buffer(tmp_path / f"b-{name}") as other:
            import_into(other, tmp_path / name, taskset="set")
            assert other.read("experiences").drop_columns(["created_at"]).to_pylist() == stored
    assert pq.read_table(tmp_path / "out.parquet").column("images").to_pylist() == [
        [{"bytes": image, "path": None}]
    ]
    assert lines(tmp_path / "out.jsonl")[0]["images"][0].startswith("data:image/png;base64,")


def test_a_stage_left_behind_by_a_killed_export_is_no_hindrance(buffer: Buffer, tmp_path: Path) -> None:
    buffer.append([rollout("a", 0, 1.0)])
    stage = tmp_path / f".sft.jsonl.partial-{os.getpid()}"
    stage.mkdir()
    (stage / "rubbish").write_text("x")
    export(buffer, tmp_path / "sft.jsonl", format="sft")
    assert not stage.exists()


@pytest.mark.slow
def test_stages_of_killed_exports_go_and_that_of_one_at_work_stays(buffer: Buffer, tmp_path: Path) -> None:
    buffer.append([rollout("a", 0, 1.0)])
    killed, at_work = tmp_path / ".x.parquet.partial-1", tmp_path / ".x.parquet.partial-2"
    other = tmp_path / ".y.parquet.partial-1"
    for stage in (killed, at_work, other):
        (stage / "done").mkdir(parents=True)
        (stage / "done" / "x.parquet").write_text("half")
        (stage / "lock").write_text("1\n")
    lock = Lock(at_work / "lock")
    export(buffer, tmp_path / "x.parquet", format="sft")
    lock.release()
    assert {path.name for path in tmp_path.glob(".*")} == {at_work.name, other.name}
