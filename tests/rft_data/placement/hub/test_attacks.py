"""What the holder of a token may do to a hub, and what the others notice of it: nothing."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.validation import encode
from rft_data.core.canonical import content_id
from rft_data.core.errors import BusyError, RftError, RowError, StalledError, TokenError
from rft_data.core.groups import Lease
from rft_data.core.rows import Feedback
from rft_data.core.schema import INCOMING
from rft_data.core.words import HubRole
from rft_data.placement.hub import (
    HubClient,
    HubServer,
    access,
    arrow_rows,
    buffer_calls,
    server,
    serving,
    wire,
)
from rft_data.placement.hub.frames import _HEAD, Channel, Kind
from tests.rft_data.conftest import make_experience
from tests.rft_data.placement.hub.conftest import answer, connected, wait_for


def token(hub: HubServer, role: HubRole, name: str = "one") -> str:
    return access.make_token(hub.token, role, name)


def nulls(rows: int) -> pa.Table:
    return pa.Table.from_arrays([pa.nulls(rows, field.type) for field in INCOMING], schema=INCOMING)


def begin_append(hub: HubServer, rows: int, size: int, name: str = "mad") -> Channel:
    """Begin an append and send none of its rows."""
    raw = connected(hub, token(hub, HubRole.EXPLORER, name))
    raw.send(Kind.CALL, wire.encode_call("append", {"deadline_s": 5}, rows), 10)
    raw._socket.sendall(_HEAD.pack(Kind.ROWS, size))
    return raw


def send_append(hub: HubServer, rows: int, stream: pa.Buffer) -> object:
    raw = connected(hub)
    try:
        raw.send(Kind.CALL, wire.encode_call("append", {"deadline_s": 5}, rows), 10)
        raw.send(Kind.ROWS, stream, 10)
        return answer(raw)
    finally:
        raw.close()


@pytest.fixture
def other(hub: HubServer) -> Iterator[HubClient]:
    """A client with a token of its own, which behaves."""
    with HubClient(hub.address, token(hub, HubRole.EXPLORER, "good")) as client:
        yield client


# --- rows and memory ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_million_rows_of_nulls_are_refused_before_they_are_received(hub: HubServer) -> None:
    mad = begin_append(hub, 1_000_000, 100)
    with pytest.raises(RowError, match="has 1000000 rows; at most 8192"):
        answer(mad)
    mad.close()


@pytest.mark.slow
def test_rows_beyond_the_number_said_are_refused(hub: HubServer, other: HubClient) -> None:
    with pytest.raises(RowError, match="says that it has 3 rows, and brings 50000"):
        send_append(hub, 3, arrow_rows.encoded(nulls(50_000)))
    assert other.append([make_experience(0)]).seqs == (0,)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_rows_are_refused_before_they_are_decoded(hub: HubServer, codec: str) -> None:
    table = encode([make_experience(0, completion_text="x" * (32 << 20))])[0]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as stream:
        stream.write_table(table)
    small = sink.getvalue()
    assert small.size < 1 << 20
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(RowError, match="are compressed; send them without"):
        arrow_rows.checked(small, INCOMING, 1)
    assert pa.default_memory_pool().bytes_allocated() - before < 1 << 20
    with pytest.raises(RowError, match="are compressed"):
        send_append(hub, 1, small)


@pytest.mark.slow
def test_types_that_stand_for_more_than_their_bytes_are_refused(hub: HubServer) -> None:
    table = encode([make_experience(0)])[0]
    place = table.schema.get_field_index("completion_text")
    for column in (
        table.column(place).dictionary_encode(),
        table.column(place).cast(pa.string_view()),
        pa.chunked_array([pa.nulls(1)]),
    ):
        with pytest.raises(RowError, match=r"completion_text' is|message 'dictionary'"):
            send_append(hub, 1, arrow_rows.encoded(table.set_column(place, "completion_text", column)))


@pytest.mark.slow
def test_bytes_that_are_no_arrow_stream_are_refused(hub: HubServer) -> None:
    good = arrow_rows.encoded(encode([make_experience(i) for i in range(2)])[0]).to_pybytes()
    for bad in (b"", b"\xff" * 9 + good[9:], good[:40] + b"\xff" * 9 + good[49:], good[: len(good) // 2]):
        with pytest.raises(RowError, match="of a hub call"):
            send_append(hub, 2, pa.py_buffer(bad))


def test_json_that_would_fill_the_memory_is_refused(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_rows, "MAX_JSON_TEXT", 1 << 10)
    nested = [{"role": "user", "content": "x" * 2000}]
    with (
        HubClient(hub.address, hub.token) as client,
        pytest.raises(RowError, match=r"has a JSON text of 2.* bytes"),
    ):
        client.append([make_experience(0, messages=nested)])


@pytest.mark.slow
def test_a_list_of_rows_in_json_is_bounded_too(hub: HubServer) -> None:
    with HubClient(hub.address, hub.token) as client:
        with pytest.raises(RowError, match="has 8193 rows; at most 8192"):
            client.add_rows("metrics", [{}] * 8193)
        with pytest.raises(RowError, match="has 8193 rows; at most 8192"):
            client.add_feedback([Feedback("x", "a", "k", 1.0)] * 8193)


@pytest.mark.slow
def test_reads_are_bounded_by_bytes_and_not_by_their_limit(
    hub: HubServer, buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer.append([make_experience(i, completion_text=f"{i}" * (3 << 20)) for i in range(8)])
    whole = Buffer.batches
    sizes = []

    def watched(self: Buffer, *args: object) -> Iterator[pa.RecordBatch]:
        for batch in whole(self, *args):
            sizes.append(batch.nbytes)
            yield batch

    monkeypatch.setattr(Buffer, "batches", watched)
    for name in ("read", "tail"):
        monkeypatch.setattr(Buffer, name, None)  # it would hold all rows at once
    with HubClient(hub.address, token(hub, HubRole.READER)) as reader:
        assert reader.read("experiences", limit=5).column("seq").to_pylist() == [0, 1, 2, 3, 4]
        assert reader.tail("experiences", 6).column("seq").to_pylist() == [2, 3, 4, 5, 6, 7]
        assert reader.tail("experiences", 9).num_rows == 8
        assert reader.tail("experiences", 0).num_rows == reader.read("experiences", limit=0).num_rows == 0
    assert len(sizes) >= 10
    assert max(sizes) < 10 << 20


@pytest.mark.slow
def test_a_short_call_does_not_stand_for_many_rows(
    hub: HubServer, buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer.append([make_experience(i) for i in range(3)])
    monkeypatch.setattr(wire, "MAX_REQUEST_ROWS", 3)
    lease = Lease("trainer", 0, 0, 0, (2, 2), ("g",), content_id([2, 2]))
    with HubClient(hub.address, token(hub, HubRole.READER)) as reader:
        with pytest.raises(RowError, match="names 3 rows, of which 1 differ; name each row once"):
            reader.connection.rows("take", {"seqs": [2] * 3}, deadline_s=5)
        with pytest.raises(RowError, match="names 2 rows, of which 1 differ; name each row once"):
            reader.leased(lease, "p")
        with pytest.raises(RowError, match="has 4 rows; at most 3 are taken"):
            reader.connection.rows("take", {"seqs": [0, 1, 2, 3]}, deadline_s=5)
        rows = reader.connection.rows("take", {"seqs": [2, 0, 1]}, deadline_s=5)
        assert rows["seq"].to_pylist() == [2, 0, 1]


@pytest.mark.slow
def test_take_reads_few_rows_until_it_knows_how_large_they_are(
    hub: HubServer, buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer.append([make_experience(i) for i in range(200)])
    buffer.append([make_experience(200 + i, completion_text=f"{i}" * (3 << 20)) for i in range(6)])
    whole, read = Buffer.take, []

    def watched(self: Buffer, seqs: Sequence[int]) -> pa.Table:
        read.append(len(seqs))
        return whole(self, seqs)

    monkeypatch.setattr(Buffer, "take", watched)
    with HubClient(hub.address, token(hub, HubRole.READER)) as reader:
        assert reader.take(range(200))["seq"].to_pylist() == list(range(200))
        assert read == [8, 16, 32, 64, 64, 16]
        read.clear()
        args = {"seqs": [0, 1, 2, 200, 201, 202, 203, *range(3, 11)]}
        monkeypatch.setattr(buffer_calls, "_FIRST_ROWS", 1)
        rows = reader.connection.rows("take", args, deadline_s=30)
        assert rows["seq"].to_pylist() == args["seqs"]
        assert read == [1, 2, 4, 2, 4, 2], "after 4 rows of 3 MiB, as many as fit 8 MiB"


@pytest.mark.slow
def test_calls_that_give_rows_take_a_share_until_they_are_sent(
    hub: HubServer, buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer.append([make_experience(i, completion_text=f"{i}" * (4 << 20)) for i in range(8)])
    monkeypatch.setattr(wire, "MAX_REQUEST_BYTES", 3 * serving.ANSWER_BYTES - 1)
    monkeypatch.setattr(serving, "ROOM_S", 0.2)
    with (
        HubClient(hub.address, token(hub, HubRole.READER, "mad")) as mad,
        HubClient(hub.address, token(hub, HubRole.READER, "good")) as good,
    ):
        streams = [mad.batches("experiences") for _ in range(2)]
        begun = [next(stream).num_rows for stream in streams]  # and takes no more for now
        with pytest.raises(StalledError, match=r"reader 'mad'. had 0 rows"):
            mad.take([0])
        assert mad.counts()["experiences"] == 8
        assert good.take([0]).num_rows == 1
        rest = [sum(batch.num_rows for batch in stream) for stream in streams]
        assert [sum(rows) for rows in zip(begun, rest, strict=True)] == [8, 8]
        wait_for(lambda: hub._serving.shares._bytes.total() == 0)
        assert mad.take([0]).num_rows == 1


# --- time --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_calls_that_send_nothing_stop_nobody_and_are_ended(
    hub: HubServer, other: HubClient, buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "RECEIVE_S", 1.0)
    monkeypatch.setattr(serving, "ROOM_S", 0.2)
    first = begin_append(hub, 100, wire.MAX_REQUEST_BYTES)
    wait_for(lambda: hub._serving.shares._bytes.total() == wire.MAX_REQUEST_BYTES)
    others = [begin_append(hub, 100, wire.MAX_REQUEST_BYTES) for _ in range(63)]
    assert other.append([make_experience(0)], deadline_s=20).seqs == (0,)
    with pytest.raises(StalledError, match="did not arrive within 1 s"):
        answer(first)
    for silent in others:  # a slow machine may give one of them the room that the first had
        with pytest.raises(StalledError, match=r"did not arrive within 1 s|explorer 'mad'. had"):
            answer(silent)
    wait_for(lambda: hub._serving.shares._bytes.total() == 0)
    for channel in (first, *others):
        channel.close()
    assert len(buffer) == 1


@pytest.mark.slow
def test_one_client_fills_its_own_share_and_no_other(
    hub: HubServer, other: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_REQUEST_BYTES", 1 << 20)
    monkeypatch.setattr(serving, "ROOM_S", 0.1)
    holding = begin_append(hub, 8000, 1000)
    wait_for(lambda: hub._serving.shares._rows.total() == 8000)
    for rows, size in ((193, 10), (10, wire.MAX_REQUEST_BYTES)):
        beside = begin_append(hub, rows, size)
        with pytest.raises(StalledError, match="send it again"):
            answer(beside)
        beside.close()
    assert other.append([make_experience(0)]).seqs == (0,)
    holding.close()
    wait_for(lambda: hub._serving.shares._rows.total() == 0)
    with HubClient(hub.address, token(hub, HubRole.EXPLORER, "mad")) as again:
        assert again.append([make_experience(1)]).seqs == (1,)


@pytest.mark.slow
def test_connections_of_one_client_are_counted(
    hub: HubServer, other: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 3)
    with ExitStack() as opened:
        for _ in range(3):
            opened.callback(connected(hub).close)
        with pytest.raises(BusyError, match="has 3 connections"):
            connected(hub)
        assert other.append([make_experience(0)]).seqs == (0,)
    wait_for(lambda: not hub._serving._connections[access.Holder(HubRole.OWNER, "owner")])
    connected(hub).close()


@pytest.mark.slow
def test_strangers_do_not_keep_others_out(
    hub: HubServer, other: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_STRANGERS", 4)
    host, _, port = hub.address.removeprefix("hub://").rpartition(":")
    with ExitStack() as opened:
        strangers = [opened.enter_context(socket.create_connection((host, int(port)))) for _ in range(12)]
        assert other.append([make_experience(0)]).seqs == (0,)
        strangers[0].settimeout(20)
        assert strangers[0].recv(1) == b"", "the oldest is closed"


# --- roles -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_token_of_a_role_opens_what_the_role_needs(hub: HubServer, buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    with ExitStack() as opened:
        by_role = {
            role: opened.enter_context(HubClient(hub.address, token(hub, role))) for role in access.MAY_CALL
        }
        explorer, reader = by_role[HubRole.EXPLORER], by_role[HubRole.READER]
        feedback, trainer = by_role[HubRole.FEEDBACK], by_role[HubRole.TRAINER]
        said = Feedback(make_experience(0).experience_id, "a", "k", 1.0)
        for client in (reader, feedback, trainer):
            assert client.counts()["experiences"] == 1
        assert explorer.append([make_experience(1), make_experience(2, reward=float("nan"))]).stored == 1
        assert feedback.add_feedback([said]) == 1
        assert explorer.payload(buffer.add_payload(b"pixels", "image/png")) == ("image/png", b"pixels")
        assert trainer.ledger("run", 0).attach("trainer") == 1
        for act in (
            lambda: explorer.counts(),
            lambda: explorer.ledger("run", 0).attach("trainer"),
            lambda: explorer.add_rows("versions", [{}]),
            lambda: reader.ledger("run", 0).attach("trainer"),
            lambda: reader.append([make_experience(3)]),
            lambda: reader.add_feedback([said]),
            lambda: feedback.append([make_experience(3)]),
            lambda: feedback.ledger("run", 0).grant("trainer", 0, 0, []),
            lambda: trainer.append([make_experience(3)]),
            lambda: trainer.add_rows("tags", [{}]),
            lambda: trainer.add_feedback([said]),
        ):
            with pytest.raises(TokenError, match="role"):
                act()
        assert reader.ledger("run", 0).leases() == []
    assert len(buffer) == 2


@pytest.mark.parametrize(
    ("role", "call"),
    [
        (HubRole.FEEDBACK, wire.encode_call("add_feedback", {"feedback": [{"key": []}]}, None)),
        (HubRole.EXPLORER, wire.encode_call("add_rows", {"name": []}, 1)),
    ],
)
def test_arguments_of_a_wrong_type_are_answered_before_a_role_is_refused_them(
    hub: HubServer, role: HubRole, call: bytes
) -> None:
    raw = connected(hub, token(hub, role))
    raw.send(Kind.CALL, call, 10)
    with pytest.raises(RftError, match="failed with TypeError; the hub's log has the traceback"):
        answer(raw)
    raw.close()


@pytest.mark.slow
def test_the_roles_of_tokens_cannot_be_changed(hub: HubServer) -> None:
    good = token(hub, HubRole.EXPLORER)
    for forged in (
        good.replace("explorer", "trainer"),
        good.replace("one", "two"),
        good[:-1] + ("0" if good[-1] != "0" else "1"),
        access.make_token("another secret", HubRole.EXPLORER, "one"),
    ):
        with HubClient(hub.address, forged) as client, pytest.raises(TokenError, match="refused the token"):
            client.counts()
    assert hub.token not in good
    assert access.narrowed(good, HubRole.FEEDBACK, "x") == good
    assert access.narrowed(hub.token, HubRole.EXPLORER, "one") == good


@pytest.mark.slow
def test_a_tag_that_could_not_be_read_is_not_stored(hub: HubServer, buffer: Buffer) -> None:
    row = {"name": "t", "rows": 1, "note": ""}
    with HubClient(hub.address, hub.token) as client:
        for where in ({"no": "filter"}, "seq < 3", {"op": "eq", "column": "nothing", "value": 1}):
            with pytest.raises(RowError, match="tag 't' has a filter that cannot be read"):
                client.add_rows("tags", [{**row, "filter": where}])
        client.add_rows("tags", [{**row, "filter": None}])
    assert buffer.counts()["tags"] == 1
