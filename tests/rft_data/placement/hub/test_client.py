import datetime
from concurrent.futures import wait

import numpy as np
import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.validation import encode
from rft_data.core.canonical import content_id
from rft_data.core.codec import to_table
from rft_data.core.errors import (
    ConflictError,
    IntegrityError,
    RecipeError,
    RowError,
    StalledError,
    UnknownComponentError,
)
from rft_data.core.filters import And, Compare, In, IsNull, Not, Or
from rft_data.core.groups import Lease
from rft_data.core.rows import Task, now
from rft_data.core.schema import ANNOTATIONS, EXPERIENCES, TABLES
from rft_data.placement.hub import HubClient, HubServer, wire
from rft_data.placement.hub import client as client_module
from tests.rft_data.conftest import make_experience
from tests.rft_data.placement.hub.conftest import commits_held


def annotations(seqs: range, advantage: float = 0.5) -> pa.Table:
    rows = [
        {
            "seq": seq,
            "experience_id": make_experience(seq).experience_id,
            "pipeline_hash": "p",
            "verdict": "kept",
            "dropped_by": "",
            "reason": "",
            "advantage": [advantage],
            "shaped_reward": None,
            "masked": None,
            "stats": {},
            "created_at": now(),
        }
        for seq in seqs
    ]
    return to_table(rows, ANNOTATIONS)


def group_row(number: int, reward: float = 1.0) -> dict:
    return {
        "group_id": f"run/{number}",
        "run_id": "run",
        "ordinal": number,
        "round": number,
        "attempt": 0,
        "taskset": "a",
        "task_id": "t",
        "version": 3,
        "version_min": 3,
        "outcome": "arrived",
        "rewards": [0.1, None, reward],
        "seqs": [3 * number, 3 * number + 2],
        "dropped_by": "",
        "error": "",
    }


@pytest.mark.slow
def test_append_over_the_wire_is_the_append_of_the_buffer(buffer: Buffer, client: HubClient) -> None:
    rows = [make_experience(i, reward=i / 8) for i in range(20)]
    there = client.append(rows[:12])
    here = buffer.append(rows)
    assert there.seqs == tuple(range(12))
    assert here.seqs == tuple(range(20))
    assert here.stored == 8, "the row that crossed the wire has another digest than the one that did not"
    assert client.append(rows).stored == 0
    assert len(client) == len(buffer) == 20
    assert there.rows.schema == EXPERIENCES
    assert there.rows.equals(buffer.take(there.seqs))


@pytest.mark.slow
def test_append_over_the_wire_quarantines_what_the_buffer_would(buffer: Buffer, client: HubClient) -> None:
    bad = {1: {"reward": float("nan")}, 3: {"completion_text": "\ud800"}}
    rows = [make_experience(i, **bad.get(i, {})) for i in range(5)]
    done = client.append(rows)
    assert done.seqs == (0, None, 1, None, 2)
    assert (done.stored, done.quarantined) == (3, 2)
    assert done.rows.column("experience_id").to_pylist() == [rows[i].experience_id for i in (0, 2, 4)]
    reasons = buffer.read("quarantine").column("reason").to_pylist()
    assert sorted(reason.split()[0] for reason in reasons) == ["reward", "text"]


@pytest.mark.slow
def test_append_of_nothing_and_of_foreign_columns(client: HubClient) -> None:
    assert client.append([]).seqs == ()
    assert client.append(EXPERIENCES.empty_table().drop_columns(["seq", "digest"])).stored == 0
    with pytest.raises(RowError, match="column 'x' is not known"):
        client.append(pa.table({"x": [1]}))


@pytest.mark.slow
def test_rows_of_many_frames_cross_both_ways(buffer: Buffer, client: HubClient) -> None:
    rows = [make_experience(i, completion_text=chr(97 + i) * (2 << 20)) for i in range(12)]
    done = client.append(rows)
    assert done.seqs == tuple(range(12))
    back = client.take([11, 0, 11])
    assert back.column("completion_text").to_pylist() == [rows[i].completion_text for i in (11, 0, 11)]
    assert back.equals(buffer.take([11, 0, 11]))


@pytest.mark.slow
def test_submit_pipelines_and_every_future_is_answered(buffer: Buffer, client: HubClient) -> None:
    futures = [client.submit([make_experience(4 * i + j) for j in range(4)]) for i in range(60)]
    seqs = [seq for future in futures for seq in future.result(60).seqs]
    assert sorted(seqs) == list(range(240))
    assert len(buffer) == 240


@pytest.mark.slow
def test_submit_beyond_the_pipeline_waits_and_then_says_so(
    buffer: Buffer, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PIPELINED", 2)
    with HubClient(hub.address, hub.token) as narrow:
        with commits_held(buffer):
            futures = [narrow.submit([make_experience(i)]) for i in range(2)]
            with pytest.raises(StalledError, match="2 appends of this client were under way"):
                narrow.submit([make_experience(9)], deadline_s=0.2)
            assert not wait(futures, 0.1).done
        assert {future.result(30).stored for future in futures} == {1}
        assert len(buffer) == 2


@pytest.mark.slow
def test_append_passes_its_deadline_with_the_hubs_own_words(buffer: Buffer, client: HubClient) -> None:
    with (
        commits_held(buffer),
        pytest.raises(StalledError, match="of 1 rows was not acknowledged"),
    ):
        client.append([make_experience(0)], deadline_s=0.3)
    assert client.append([make_experience(0)]).seqs == (0,)
    assert len(buffer) == 1


@pytest.mark.slow
def test_reads_are_those_of_the_buffer(buffer: Buffer, client: HubClient) -> None:
    buffer.append([make_experience(i, reward=i / 4) for i in range(10)])
    assert client.take([7, 7, 0]).equals(buffer.take([7, 7, 0]))
    assert client.take([]).equals(buffer.take([]))
    columns = ["seq", "reward"]
    assert client.read("experiences", columns).equals(buffer.read("experiences", columns))
    where = Compare("seq", "ge", 6)
    assert client.read("experiences", columns, where).column("seq").to_pylist() == [6, 7, 8, 9]
    assert client.read("experiences", columns, where, 2).column("seq").to_pylist() == [6, 7]
    assert client.read("groups").equals(TABLES["groups"][0].empty_table())
    assert client.tail("experiences", 3).equals(buffer.tail("experiences", 3))
    assert client.counts() == buffer.counts()
    [batch] = client.batches("experiences", ["seq"], where)
    assert batch.column("seq").to_pylist() == [6, 7, 8, 9]
    assert list(client.batches("groups")) == []


@pytest.mark.slow
def test_a_take_of_more_rows_than_one_call_may_name_is_several(
    buffer: Buffer, client: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer.append([make_experience(i) for i in range(8)])
    monkeypatch.setattr(wire, "MAX_REQUEST_ROWS", 3)
    wanted = [7, 7, 0, 3, 5, 1, 6, 2, 4, 0]
    assert client.take(wanted).equals(buffer.take(wanted))


@pytest.mark.slow
def test_a_text_in_a_filter_is_data(buffer: Buffer, client: HubClient) -> None:
    buffer.append([make_experience(i, completion_text=text) for i, text in enumerate(["a", "' OR 1=1 --"])])
    found = client.read("experiences", ["seq"], Compare("completion_text", "eq", "' OR 1=1 --"))
    assert found.column("seq").to_pylist() == [1]


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("experience", None, "no table 'experience'; did you mean 'experiences'"),
        ("../secret", None, "a buffer has no table"),
        ("os:system", None, "a buffer has no table"),
        ("experiences", ["rewards"], "has no column 'rewards'; did you mean 'reward'"),
        ("experiences", ["1; DROP TABLE x"], "has no column"),
    ],
)
def test_only_known_tables_and_columns_are_read(
    client: HubClient, name: str, columns: list[str] | None, message: str
) -> None:
    with pytest.raises(UnknownComponentError, match=message):
        client.read(name, columns)


def test_a_column_that_is_named_twice_is_refused(client: HubClient) -> None:
    with pytest.raises(RowError, match="a column of table 'experiences' is named more than once"):
        client.read("experiences", ["seq"] * 1000)


def test_take_of_a_missing_row_is_the_buffers_error(client: HubClient) -> None:
    with pytest.raises(IntegrityError, match="no experience with row number 5"):
        client.take([5])


@pytest.mark.slow
def test_annotate_and_leased_join_over_the_wire(buffer: Buffer, client: HubClient) -> None:
    client.append([make_experience(i) for i in range(4)])
    client.annotate(annotations(range(4)))
    client.annotate(annotations(range(2), advantage=-2.0))
    seqs = (3, 1)
    lease = Lease("trainer", 0, 1, 3, seqs, ("g",), content_id(list(seqs)))
    batch = client.leased(lease, "p")
    assert batch.lease == lease
    assert batch.table.equals(buffer.leased(lease, "p").table)
    assert batch.table.column("advantage").to_pylist() == [[0.5], [-2.0]]
    with pytest.raises(IntegrityError, match="row 3 has no advantage"):
        client.leased(lease, "other")


def test_annotations_of_another_shape_are_refused(client: HubClient) -> None:
    with pytest.raises(RowError, match="have columns"):
        client.annotate(annotations(range(1)).drop_columns(["stats"]))


@pytest.mark.slow
def test_add_rows_keeps_one_row_per_key(buffer: Buffer, client: HubClient) -> None:
    client.add_rows("groups", [group_row(0), group_row(1)])
    client.add_rows("groups", [group_row(1), group_row(2)])
    assert buffer.read("groups").column("group_id").to_pylist() == ["run/0", "run/1", "run/2"]
    assert buffer.read("groups").column("rewards")[0].as_py() == [pytest.approx(0.1), None, 1.0]
    with pytest.raises(ConflictError, match="group_id 'run/1' and other content"):
        client.add_rows("groups", [group_row(3), group_row(1, reward=0.0)])
    assert buffer.counts()["groups"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["experiences", "leases", "consumed", "annotations", "feedback", "x"])
def test_add_rows_goes_around_no_other_check(buffer: Buffer, client: HubClient, name: str) -> None:
    with pytest.raises(UnknownComponentError, match=f"may not add rows to table '{name}'"):
        client.add_rows(name, [{"run_id": "run"}])
    assert set(buffer.counts().values()) == {0}


@pytest.mark.slow
def test_add_rows_refuses_wrong_columns_and_values(buffer: Buffer, client: HubClient) -> None:
    row = {"run_id": "run", "role": "trainer", "step": 1, "key": "loss", "value": 0.5}
    client.add_rows("metrics", [row, {**row, "key": "grad", "value": float("nan")}])
    assert np.isnan(buffer.read("metrics").column("value")[1].as_py())
    with pytest.raises(RowError, match="missing or unknown"):
        client.add_rows("metrics", [{**row, "what": 1}])
    with pytest.raises(RowError, match="JSON cannot carry"):
        client.add_rows("metrics", [{**row, "value": object()}])
    assert buffer.counts()["metrics"] == 2


@pytest.mark.slow
def test_add_tasks_keeps_every_field(buffer: Buffer, client: HubClient) -> None:
    task = Task(
        "a", ({"role": "user", "content": "1+1="},), "2", "heldout", 0.5, {"n": [1]}, "w", "r", ("x",), "e"
    )
    assert client.add_tasks([task, Task("a", ({"role": "user", "content": "?"},))]) == 2
    assert client.add_tasks([task]) == 0
    assert client.add_tasks([]) == 0
    assert buffer.tasks("heldout") == client.tasks("heldout") == [task]


@pytest.mark.slow
def test_a_call_that_brings_too_much_is_refused_on_both_sides(
    buffer: Buffer, client: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_REQUEST_BYTES", 1 << 20)
    table = encode([make_experience(i, completion_text="x" * (1 << 20)) for i in range(20)])[0]
    with pytest.raises(RowError, match="at most 1048576 are taken"):
        client.append(table)
    monkeypatch.setattr(
        "rft_data.placement.hub.connection.check_request", lambda rows, size: None
    )  # a client of another make
    with pytest.raises(RowError, match="at most 1048576 are taken"):
        client.append(table)
    assert len(buffer) == 0
    monkeypatch.setattr(wire, "MAX_COMMAND_BYTES", 1 << 10)
    with pytest.raises(RowError, match="bytes of JSON; at most 1024"):
        client.read("experiences", where=In("seq", tuple(range(1 << 10))))


@pytest.mark.slow
def test_rows_read_elsewhere_can_be_appended_again(client: HubClient, tmp_path) -> None:
    client.append([make_experience(i) for i in range(8)])
    with Buffer(tmp_path / "copy") as copy:
        copy.append(client.read("experiences").drop_columns(["seq", "digest"]))
        assert copy.read("experiences").equals(client.read("experiences"))


@pytest.mark.slow
def test_created_at_of_rows_is_the_hubs(client: HubClient) -> None:
    before = now()
    client.add_rows("groups", [group_row(0)])
    [stamp] = client.read("groups").column("created_at").to_pylist()
    assert before <= stamp <= now() + datetime.timedelta(seconds=1)


@pytest.mark.slow
def test_a_filter_is_checked_against_its_table(client: HubClient) -> None:
    with pytest.raises(RecipeError, match="the filter is not valid"):
        client.read("groups", None, Compare("reward", "eq", 1))
    where = And((Or((Compare("seq", "lt", 2), In("seq", (5,)))), Not(IsNull("reward"))))
    client.append([make_experience(i, reward=None if i == 1 else 0.5) for i in range(8)])
    assert client.read("experiences", ["seq"], where).column("seq").to_pylist() == [0, 5]


@pytest.mark.slow
def test_a_payload_comes_whole_and_one_that_is_missing_is_named(client: HubClient, buffer: Buffer) -> None:
    name = buffer.add_payload(b"pixels", "image/png")
    assert client.payload(name) == ("image/png", b"pixels")
    with pytest.raises(IntegrityError, match="has no payload 'other'"):
        client.payload("other")
