import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.codec import to_table
from rft_data.core.errors import BusyError, ConflictError, IntegrityError, MissingFileError, RowError
from rft_data.core.groups import Lease
from rft_data.core.rows import Experience, Task, now
from rft_data.core.schema import ANNOTATIONS, INCOMING
from tests.rft_data.conftest import make_experience


@pytest.mark.slow
def test_append_numbers_rows_densely_and_keeps_their_content(buffer: Buffer) -> None:
    rows = [make_experience(i, reward=i / 8) for i in range(20)]
    assert buffer.append(rows[:5]).seqs == (0, 1, 2, 3, 4)
    assert buffer.append(rows[5:]).seqs == tuple(range(5, 20))
    stored = buffer.read("experiences")
    assert stored.column("seq").to_pylist() == list(range(20))
    assert stored.column("experience_id").to_pylist() == [row.experience_id for row in rows]
    assert stored.column("logprobs").to_pylist()[7] == [0.0, 0.0, -0.25, -1.5]


def test_a_table_at_any_address_is_stored(buffer: Buffer) -> None:
    table = to_table([make_experience(i) for i in range(4)], INCOMING)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    shifted = pa.py_buffer(b"abc" + sink.getvalue().to_pybytes()).slice(3)
    assert buffer.append(pa.ipc.open_stream(shifted).read_all()).seqs == (0, 1, 2, 3)
    assert buffer.take([2]).column("experience_id").to_pylist() == [make_experience(2).experience_id]


@pytest.mark.slow
def test_append_same_row_twice_keeps_one(buffer: Buffer) -> None:
    first = buffer.append([make_experience(0), make_experience(1), make_experience(0)])
    again = buffer.append([make_experience(1, created_at=now()), make_experience(2)])
    assert first.seqs == (0, 1, 0)
    assert again.seqs == (1, 2)
    assert (first.stored, again.stored, len(buffer)) == (2, 1, 3)
    assert buffer.append([make_experience(2), make_experience(0)]).seqs == (2, 0)
    assert buffer.append([]).seqs == ()
    assert len(buffer) == 3


def test_append_same_id_with_other_content_is_refused_and_stores_nothing(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    with pytest.raises(ConflictError, match="already stored with other content"):
        buffer.append([make_experience(5), make_experience(0, reward=0.0)])
    assert len(buffer) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reward": float("nan")}, "reward is nan"),
        ({"reward_parts": {"x": float("inf")}}, "reward_parts does not fit its column"),
        ({"logprobs": [0.0, 0.0, float("-inf"), 0.0]}, "logprobs hold NaN, an infinity or null"),
        ({"logprobs": [0.0]}, "token lists differ in length"),
        ({"action_mask": [0, 0, 2, 1]}, "other than 0 and 1"),
        ({"prompt_length": 9}, "prompt_length is 9 for 4 tokens"),
        ({"token_ids": None}, "token_ids is missing"),
        ({"version_min": None}, "version_min is missing"),
        ({"completion_text": "\ud800"}, "lone surrogate"),
        ({"messages": ({"role": "assistant", "content": "\udfff"},)}, "lone surrogate"),
        ({"source": "nowhere"}, "source is 'nowhere'"),
        ({"task_id": ""}, "task_id is empty"),
    ],
)
def test_append_quarantines_a_bad_row_and_stores_the_others(
    buffer: Buffer, changes: dict, reason: str
) -> None:
    done = buffer.append([make_experience(0), make_experience(1, **changes), make_experience(2)])
    assert done.seqs == (0, None, 1)
    assert (done.stored, done.quarantined) == (2, 1)
    [row] = buffer.read("quarantine").to_pylist()
    assert reason in row["reason"]
    assert row["experience_id"] == make_experience(1).experience_id


@pytest.mark.slow
def test_reopened_buffer_knows_its_rows(tmp_path: Path) -> None:
    with Buffer(tmp_path / "b") as first:
        first.append([make_experience(0)])
    with Buffer(tmp_path / "b") as second:
        assert second.append([make_experience(0), make_experience(1)]).seqs == (0, 1)


@pytest.mark.slow
def test_second_writer_is_refused_and_reader_is_not(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    with pytest.raises(BusyError, match=f"pid {os.getpid()}"):
        Buffer(buffer.root)
    assert len(Buffer(buffer.root, read_only=True)) == 1


@pytest.mark.slow
def test_reader_sees_commits_made_after_it_opened(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    reader = Buffer(buffer.root, read_only=True)
    assert len(reader) == 1
    buffer.append([make_experience(1)])
    assert len(reader) == 2


@pytest.mark.slow
def test_a_readers_threads_take_rows_committed_after_it_opened(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    reader = Buffer(buffer.root, read_only=True)

    def newest(_: int) -> int:
        last = len(reader) - 1
        return int(reader.take([last])["seq"][0].as_py()) - last

    with ThreadPoolExecutor(4) as threads:
        found = threads.map(newest, range(80))
        for number in range(1, 6):
            buffer.append([make_experience(number)])
            assert reader.take([number])["seq"].to_pylist() == [number]
        assert set(found) == {0}


def test_missing_buffer_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="there is no buffer at"):
        Buffer(tmp_path / "nothing", read_only=True)
    assert not (tmp_path / "nothing").exists()


def test_other_schema_version_is_refused(tmp_path: Path) -> None:
    Buffer(tmp_path / "b").close()
    (tmp_path / "b" / "schema_version").write_text("99\n")
    with pytest.raises(IntegrityError, match="schema version 99"):
        Buffer(tmp_path / "b")


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_take_returns_rows_in_the_order_asked(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    with Buffer(tmp_path_factory.mktemp("take")) as buffer:
        rows = [make_experience(i) for i in range(12)]
        for cut in range(0, 12, 5):
            buffer.append(rows[cut : cut + 5])
        seqs = data.draw(st.lists(st.integers(0, 11), max_size=20))
        assert buffer.take(seqs).column("seq").to_pylist() == seqs
        with pytest.raises(IntegrityError, match="no experience with row number 12"):
            buffer.take([*seqs, 12])


@pytest.mark.slow
def test_damaged_row_is_found_when_it_is_taken(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    # what a flipped bit would do: another reward under the digest of the first
    table = buffer.read("experiences")
    forged = table.set_column(
        table.column_names.index("reward"), table.schema.field("reward"), pa.array([0.5], pa.float32())
    )
    forged = forged.set_column(0, forged.schema.field("seq"), pa.array([1], pa.int64()))
    buffer._store.add("experiences", forged)
    with pytest.raises(IntegrityError, match=r"row 1 .* does not match its digest"):
        buffer.take([0, 1])


def annotation(
    seq: int, verdict: str = "kept", advantage: float | None = 1.0, pipeline: str = "p"
) -> pa.Table:
    row = {
        "seq": seq,
        "experience_id": f"e{seq}",
        "pipeline_hash": pipeline,
        "verdict": verdict,
        "dropped_by": "",
        "reason": "",
        "advantage": None if advantage is None else [advantage],
        "shaped_reward": None,
        "masked": None,
        "stats": {},
        "created_at": now(),
    }
    return to_table([row], ANNOTATIONS)


def lease_of(*seqs: int, digest: str | None = None) -> Lease:
    return Lease("trainer", 0, 0, 0, seqs, ("g",), digest or content_id(list(seqs)))


@pytest.mark.slow
def test_leased_joins_the_newest_annotation_of_the_pipeline(buffer: Buffer) -> None:
    buffer.append([make_experience(i) for i in range(3)])
    for table in (annotation(0, advantage=1.0), annotation(2, advantage=-1.0), annotation(2, advantage=-3.0)):
        buffer.annotate(table)
    buffer.annotate(annotation(0, advantage=9.0, pipeline="another"))
    batch = buffer.leased(lease_of(2, 0), "p")
    assert batch.table.column("advantage").to_pylist() == [[-3.0], [1.0]]
    assert batch.table.column("seq").to_pylist() == [2, 0]
    buffer.close()
    with Buffer(buffer.root) as again:
        assert again.leased(lease_of(2, 0), "p").table.equals(batch.table)


def test_leased_refuses_rows_that_no_operator_kept(buffer: Buffer) -> None:
    buffer.append([make_experience(0), make_experience(1)])
    buffer.annotate(annotation(0, verdict="dropped", advantage=None))
    for seq in (0, 1):
        with pytest.raises(IntegrityError, match="has no advantage from the pipeline"):
            buffer.leased(lease_of(seq), "p")
    with pytest.raises(IntegrityError, match="do not match its digest"):
        buffer.leased(lease_of(0, digest="f" * 32), "p")


def test_a_row_dropped_after_it_was_kept_is_not_leased(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    buffer.annotate(annotation(0))
    buffer.annotate(annotation(0, verdict="dropped", advantage=None))
    with pytest.raises(IntegrityError, match="has no advantage"):
        buffer.leased(lease_of(0), "p")


def test_add_rows_refuses_unknown_and_missing_columns(buffer: Buffer) -> None:
    with pytest.raises(RowError, match=r"columns \['valu', 'value'\] missing or unknown"):
        buffer.add_rows("metrics", [{"run_id": "r", "role": "x", "step": 0, "key": "k", "valu": 1.0}])


def test_add_tasks_keeps_one_of_each(buffer: Buffer) -> None:
    task = Task("a", ({"role": "user", "content": "hi"},), "1")
    assert buffer.add_tasks([task, task]) == 1
    assert buffer.add_tasks([task]) == 0
    assert buffer.tasks() == [task]


WRITER = """
import sys
from pathlib import Path
from rft_data.buffer import Buffer
from tests.rft_data.conftest import make_experience
buffer = Buffer(Path(sys.argv[1]))
start = len(buffer)
for batch in range(10_000):
    done = buffer.append([make_experience(start + 8 * batch + i) for i in range(8)])
    print(done.seqs[-1], flush=True)
"""


@pytest.mark.slow
def test_acknowledged_rows_survive_kill_9(tmp_path: Path) -> None:
    acknowledged = -1
    for round_ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "b")],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for _ in range(7 * round_ + 5):
            line = writer.stdout.readline()
            assert line, "the writer died before it was killed"
            acknowledged = int(line)
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        writer.wait()
        with Buffer(tmp_path / "b") as buffer:
            seqs = buffer.read("experiences", ["seq"]).column("seq").to_pylist()
            assert len(seqs) > acknowledged
            assert len(seqs) % 8 == 0, "half a batch was stored"
            assert buffer.take(seqs[-8:]).num_rows == 8


def test_stored_json_is_readable_by_anyone(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    [row] = buffer.tail("experiences", 1).to_pylist()
    assert json.loads(row["messages"])[1] == {"role": "assistant", "content": "2"}


@pytest.mark.slow
def test_leased_tells_which_rows_are_masked(buffer: Buffer) -> None:
    buffer.append([make_experience(i) for i in range(4)])
    for seq, masked in enumerate([True, False, None, True]):
        table, column = annotation(seq), pa.array([masked], pa.bool_())
        buffer.annotate(table.set_column(table.column_names.index("masked"), "masked", column))
    buffer.annotate(annotation(3))  # the newest verdict counts
    assert buffer.leased(lease_of(0, 1, 2, 3), "p").table["masked"].to_pylist() == [True, False, False, False]


@pytest.mark.slow
def test_objects_and_tables_in_one_commit_each_get_their_own_row_numbers(tmp_path: Path) -> None:
    def rows(*numbers: int) -> list[Experience]:
        return [make_experience(number) for number in numbers]

    with Buffer(tmp_path / "buffer") as buffer:
        with buffer._store.locked(
            "experiences"
        ):  # the first waits for the lock, and the others for the first
            first = buffer.submit(rows(0))
            while not buffer._intake._writer._unfinished:
                time.sleep(0.001)
            surrogate = replace(make_experience(2), completion_text="\ud800")
            sent = [
                [*rows(1), surrogate, *rows(3)],
                to_table([*rows(4), replace(make_experience(5), reward=float("nan")), *rows(6)], INCOMING),
                rows(7, 8),
            ]
            waiting = [buffer.submit(part) for part in sent]
        done = [future.result(60) for future in waiting]
        assert first.result(60).seqs == (0,)
        assert [appended.seqs for appended in done] == [(1, None, 2), (3, None, 4), (5, 6)]
        assert [appended.quarantined for appended in done] == [1, 1, 0]
        assert len({id(appended.commit) for appended in done}) == 1, "they were not in one commit"
        stored = buffer.take(range(7)).column("experience_id").to_pylist()
        assert stored == [row.experience_id for row in rows(0, 1, 3, 4, 6, 7, 8)]
        assert buffer.counts()["quarantine"] == 2
