"""Import, export, import: the same canonical rows, for every format and every kind of file."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.core.rows import Experience
from rft_data.exchange.formats import FORMATS, export, import_into
from tests.rft_data.exchange.formats.conftest import again, contents, jsonl, quarantined, read
from tests.rft_data.exchange.formats.rows import QUESTIONS_ONLY, ROWS, experiences, preferences, tasks

FILES = ("out.jsonl", "out.jsonl.gz", "out.jsonl.zst", "out.parquet", "out")
few = settings(max_examples=4, suppress_health_check=list(HealthCheck))
FLAT = ("gsm8k", "problem-solution", "trl-prompt", "trl-prompt-completion", "trl-unpaired", "trl-preference")


def test_every_format_that_is_read_is_tested() -> None:
    readable = {name for name, made in FORMATS.items() if made.read and not made.regroup}
    assert readable == {"rft", *ROWS}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
@settings(max_examples=60)
@given(data=st.data())
def test_a_row_written_and_read_again_is_the_same_row(name: str, data: st.DataObject) -> None:
    first = read(FORMATS[name], data.draw(ROWS[name]))
    table = FORMATS[name].tables[0]
    found: list = []
    for record in first:
        if isinstance(record, Experience) or table != "experiences":
            found += again(FORMATS[name], record)
    assert len(found) == len(first)
    assert all(record in first for record in found)
    assert all(record in found for record in first)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS_ONLY)
@settings(max_examples=40)
@given(data=st.data())
def test_a_task_written_and_read_again_is_the_same_task(name: str, data: st.DataObject) -> None:
    first = read(FORMATS[name], data.draw(QUESTIONS_ONLY[name]))
    assert [type(record).__name__ for record in first] == ["Task"]
    assert again(FORMATS[name], first[0]) == first


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
@few
@given(data=st.data())
def test_import_export_import_is_the_identity_for_every_kind_of_file(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("b")
    rows = data.draw(st.lists(ROWS[name], min_size=1, max_size=8))
    first = read(FORMATS[name], rows[0])[0]
    kinds = [
        (isinstance(r.get("prompt", r.get("chosen", r.get("messages"))), list), "prompt" in r) for r in rows
    ]
    rows = [row for row, kind in zip(rows, kinds, strict=True) if kind == kinds[0]]
    source = jsonl(root / "in.jsonl", rows)
    file = data.draw(st.sampled_from(FILES))
    with Buffer(root / "a") as buffer:
        report = import_into(buffer, source, format=name, taskset="set")
        assert (report.quarantined, report.rows) == (0, len(rows)), quarantined(buffer)
        written = export(buffer, root / file, format=name)
        assert written.skipped == {}
        wanted = contents(buffer)
    with Buffer(root / "b") as other:
        import_into(other, root / file, format=name, taskset="set")
        found = contents(other)
    assert found == wanted
    assert sum(map(len, wanted.values())) >= 1
    assert first is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAT)
@few
@given(data=st.data())
def test_plain_text_goes_through_csv_unchanged(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("b")
    rows = data.draw(st.lists(ROWS[name], min_size=1, max_size=6))
    plain = [r for r in rows if not any(isinstance(r.get(c), list) for c in ("prompt", "chosen", "tools"))]
    plain = [r for r in plain if r.get("prompt") != "" and ("prompt" in r) == ("prompt" in plain[0])]
    if not plain:
        return
    with Buffer(root / "a") as buffer:
        import_into(buffer, jsonl(root / "in.jsonl", plain), format=name, taskset="set")
        assert export(buffer, root / "out.csv", format=name).skipped == {}
        wanted = contents(buffer)
    with Buffer(root / "b") as other:
        import_into(other, root / "out.csv", format=name, taskset="set")
        assert contents(other) == wanted


@pytest.mark.slow
@few
@given(data=st.data())
def test_rft_keeps_every_column_of_every_experience(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("b")
    file = data.draw(st.sampled_from(FILES))
    with Buffer(root / "a") as buffer:
        ids = tuple(buffer.add_payload(image, "image/png") for image in (b"\x89PNG\r\n\x1a\n1", b"\x00\xff"))
        rows = data.draw(
            st.lists(experiences(ids), min_size=1, max_size=8, unique_by=lambda row: row.experience_id)
        )
        assert buffer.append(rows).quarantined == 0
        export(buffer, root / file, format="rft")
        wanted = buffer.read("experiences").drop_columns(["seq"]).to_pylist()
    with Buffer(root / "b") as other:
        report = import_into(other, root / file)
        assert (report.format, report.stored, quarantined(other)) == ("rft", len(rows), [])
        assert other.read("experiences").drop_columns(["seq"]).to_pylist() == wanted
        for name in {name for row in rows for name in row.payloads}:
            assert other.payload(name) == (
                "image/png",
                dict(zip(ids, (b"\x89PNG\r\n\x1a\n1", b"\x00\xff"), strict=True))[name],
            )


@pytest.mark.slow
@few
@given(data=st.data())
def test_rft_keeps_tasks_and_preferences(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("b")
    file = data.draw(st.sampled_from(FILES))
    with Buffer(root / "a") as buffer, Buffer(root / "b") as other:
        buffer.add_tasks(data.draw(st.lists(tasks(), min_size=1, max_size=5)))
        buffer.add_preferences(data.draw(st.lists(preferences(), min_size=1, max_size=5)))
        for name in ("tasks", "preferences"):
            export(buffer, root / file, format="rft", table=name, overwrite=True)
            assert import_into(other, root / file).format == "rft"
            new = ["created_at"] if name == "tasks" else []
            assert (
                other.read(name).drop_columns(new).to_pylist()
                == buffer.read(name).drop_columns(new).to_pylist()
            )


@pytest.mark.slow
def test_rft_refuses_a_row_that_was_changed(buffer: Buffer, tmp_path: Path) -> None:
    task = {"question": "1+1=", "answer": "it is\n#### 2"}
    import_into(buffer, jsonl(tmp_path / "a.jsonl", [task, {**task, "question": "1+1 ="}]))
    export(buffer, tmp_path / "out.jsonl", format="rft")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    rows[1]["completion_text"] = "it is three"
    with Buffer(tmp_path / "other") as other:
        report = import_into(other, jsonl(tmp_path / "changed.jsonl", rows))
        assert (report.stored, report.quarantined) == (1, 1)
        assert "changed.jsonl:2: digest is" in quarantined(other)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"surprise": 1}, "columns not known surprise"),
        ({"turn": None}, "turn is null"),
        ({"member": "two"}, "does not fit its column"),
        ({"created_at": "yesterday"}, "created_at does not fit"),
        ({"metadata": "{"}, "metadata is not JSON"),
        ({"source": "dream"}, "source is 'dream'"),
        (
            {"attachments": [{"payload_id": "x", "media_type": "a/b", "data": "AA=="}]},
            "is not the hash of its bytes",
        ),
        ({"attachments": [{"data": "AA=="}]}, "attachments are not"),
        ({"digest": "0" * 32}, "the row was changed"),
    ],
)
def test_rft_sets_a_bad_row_aside_and_keeps_the_others(
    buffer: Buffer, tmp_path: Path, change: dict, reason: str
) -> None:
    import_into(
        buffer, jsonl(tmp_path / "a.jsonl", [{"question": str(i), "answer": f"#### {i}"} for i in range(3)])
    )
    export(buffer, tmp_path / "out.jsonl", format="rft")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    rows[1] = {**rows[1], **({} if "digest" in change else {"digest": None}), **change}
    with Buffer(tmp_path / "other") as other:
        report = import_into(other, jsonl(tmp_path / "changed.jsonl", rows))
        assert (report.stored, report.quarantined) == (2, 1)
        assert "changed.jsonl:2: " in quarantined(other)[0]
        assert reason in quarantined(other)[0]


@pytest.mark.slow
def test_rft_keeps_json_text_byte_for_byte(buffer: Buffer, tmp_path: Path) -> None:
    import_into(buffer, jsonl(tmp_path / "a.jsonl", [{"question": "q", "answer": "#### 1"}]))
    incoming = buffer.read("experiences").drop_columns(["seq", "digest"])
    place = incoming.schema.get_field_index("metadata")
    odd = incoming.set_column(
        place, incoming.schema.field(place), [['{"b": 1.50,  "a": 10000000000000000000000}']]
    )
    with Buffer(tmp_path / "odd") as other, Buffer(tmp_path / "third") as third:
        other.append(odd)
        for file in FILES:
            export(other, tmp_path / file, format="rft")
            assert import_into(third, tmp_path / file).quarantined == 0
        assert third.read("experiences").column("metadata").to_pylist() == odd.column("metadata").to_pylist()
        assert len(third) == 1


@pytest.mark.slow
def test_an_id_stored_with_other_content_is_one_bad_row(buffer: Buffer, tmp_path: Path) -> None:
    rows = [{"question": str(i), "answer": f"#### {i}"} for i in range(9)]
    import_into(buffer, jsonl(tmp_path / "a.jsonl", rows), limit=6)
    export(buffer, tmp_path / "out.jsonl", format="rft")
    changed = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    changed[3] = {**changed[3], "digest": None, "finish_reason": "stop"}
    changed += [{**changed[4], "experience_id": f"new{i}", "digest": None} for i in range(2)]
    report = import_into(buffer, jsonl(tmp_path / "changed.jsonl", changed))
    assert (report.stored, report.already_there, report.quarantined) == (2, 5, 1)
    assert "changed.jsonl:4: experience" in report.problems[0]
    assert "already stored with other content" in report.problems[0]
