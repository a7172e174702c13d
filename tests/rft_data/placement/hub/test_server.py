import logging
import socket
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from rft_data.buffer import Buffer, faults
from rft_data.buffer.validation import encode
from rft_data.core import errors
from rft_data.core.errors import BusyError, ConflictError, DiskFullError, RftError, RowError, StalledError
from rft_data.core.failpoints import armed
from rft_data.placement.hub import HubClient, HubServer, server, wire
from rft_data.placement.hub.wire import ERRORS, TokenError
from tests.rft_data.conftest import make_experience
from tests.rft_data.placement.hub.conftest import commits_held, wait_for


def test_a_hub_listens_on_loopback_under_a_token_of_its_own(buffer: Buffer) -> None:
    hubs = [HubServer(buffer) for _ in range(2)]
    assert len({hub.token for hub in hubs}) == 2
    assert min(len(hub.token) for hub in hubs) >= 32
    with pytest.raises(RftError, match="no address before it is started"):
        _ = hubs[0].address
    with hubs[0] as hub:
        assert hub.start().address.startswith("grpc://127.0.0.1:")
        port = int(hub.address.rpartition(":")[2])
        with socket.socket() as other, pytest.raises(ConnectionRefusedError):
            other.connect(("127.0.0.2", port))
        with pytest.raises(BusyError, match=f"cannot listen on 127.0.0.1:{port}"):
            HubServer(buffer, port=port).start()
    hub.close()


@pytest.mark.parametrize("token", ["", "wrong", "tokén"])
def test_a_wrong_token_is_refused(buffer: Buffer, hub: HubServer, token: str) -> None:
    with HubClient(hub.address, token) as stranger:
        for act in (stranger.counts, lambda: stranger.append([make_experience(0)])):
            with pytest.raises(TokenError, match="token"):
                act()
        with pytest.raises(TokenError, match="token"):
            next(stranger.batches("experiences"))
    assert len(buffer) == 0


@pytest.mark.parametrize("right", [True, False])
def test_no_other_flight_call_is_served(hub: HubServer, right: bool) -> None:
    headers = [(b"authorization", wire.authorization(hub.token).encode())] if right else []
    options = flight.FlightCallOptions(timeout=10, headers=headers)
    refused = (NotImplementedError, flight.FlightError) if right else flight.FlightUnauthenticatedError
    descriptor = flight.FlightDescriptor.for_path("experiences")
    with flight.FlightClient(hub.address) as raw:
        for act in (
            lambda: list(raw.list_flights(options=options)),
            lambda: list(raw.do_action("x", options)),
            lambda: raw.do_get(flight.Ticket(b"x"), options).read_all(),
            lambda: raw.get_flight_info(descriptor, options),
        ):
            with pytest.raises(refused):
                act()


@pytest.mark.parametrize(
    "command", [b"", b"{", b"[]", b'{"method": "counts"}', b'{"method": "__init__", "args": {}, "rows": 0}']
)
def test_a_malformed_call_is_answered_with_an_error(hub: HubServer, command: bytes) -> None:
    header = (b"authorization", wire.authorization(hub.token).encode())
    options = flight.FlightCallOptions(timeout=10, headers=[header])
    with flight.FlightClient(hub.address) as raw:
        writer, reader = raw.do_exchange(flight.FlightDescriptor.for_command(command), options)
        writer.write_metadata(b"")
        writer.done_writing()
        with pytest.raises(RftError, match="hub call"):
            wire.decode_answer(reader.read_chunk().app_metadata.to_pybytes())
        writer.close()


def test_an_append_cut_off_while_it_is_sent_stores_nothing(
    buffer: Buffer, hub: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    header = (b"authorization", wire.authorization(hub.token).encode())
    options = flight.FlightCallOptions(timeout=10, headers=[header])
    call = flight.FlightDescriptor.for_command(wire.encode_call("append", {"deadline_s": 5}, 4))
    table = encode([make_experience(i) for i in range(4)])[0]
    with flight.FlightClient(hub.address) as raw:
        writer, reader = raw.do_exchange(call, options)
        writer.begin(table.schema)
        writer.write_table(table.slice(0, 2))
        # a call that is cancelled before it has come to the hub never was one
        wait_for(lambda: hub._flight._receiving._value < server.MAX_RECEIVING)
        reader.cancel()
        wait_for(lambda: "closed its connection" in caplog.text)
    assert len(buffer) == 0


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_class_of_error_crosses_with_its_message(name: str) -> None:
    sent = ERRORS[name]("the thing, what was found, é")
    with pytest.raises(RftError) as caught:
        wire.decode_answer(wire.encode_error(sent))
    assert type(caught.value) is type(sent)
    assert str(caught.value) == str(sent)


def test_errors_are_all_of_ours() -> None:
    assert set(ERRORS) == {name for name in vars(errors) if name.endswith("Error")} | {"Stopped"}


def test_errors_of_the_buffer_cross(
    buffer: Buffer, client: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append([make_experience(0)])
    with pytest.raises(ConflictError, match="already stored with other content"):
        client.append([make_experience(0, reward=0.25)])
    monkeypatch.setattr(faults, "RESERVE_BYTES", 1 << 60)
    with pytest.raises(DiskFullError, match="has no room"):
        client.append([make_experience(1)])
    monkeypatch.undo()
    assert client.append([make_experience(1)]).seqs == (1,)
    buffer.close()
    with pytest.raises(RftError, match="the buffer is closed"):
        client.append([make_experience(2)])


def test_an_unknown_error_crosses_without_its_inside(
    client: HubClient, caplog: pytest.LogCaptureFixture
) -> None:
    with armed("store.write", 1), pytest.raises(RftError) as caught:
        client.append([make_experience(0)])
    assert type(caught.value) is RftError
    assert str(caught.value) == "hub call 'append' failed with OSError; the hub's log has the traceback."
    assert "failpoint store.write" in caplog.text
    assert client.append([make_experience(0)]).seqs == (0,)


def test_data_that_points_outside_itself_is_refused() -> None:
    offsets, values = pa.py_buffer(np.array([0, 65535, 2], np.int32)), pa.array([1, 2], pa.int32())
    lists = pa.Array.from_buffers(pa.list_(pa.int32()), 2, [None, offsets], children=[values])
    texts = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    for column in (lists, texts):
        with pytest.raises(RowError, match="column 'x' of a hub call is not well formed"):
            wire.check_form(pa.table({"x": column}))
    not_utf8 = pa.array([b"\xff"]).view(pa.string())
    wire.check_form(pa.table({"x": not_utf8, "y": pa.array([[1]])}))  # for the door to quarantine


@pytest.mark.slow
def test_too_many_calls_with_rows_at_a_time_are_told_so(
    buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_RECEIVING", 1)
    monkeypatch.setattr(server, "RECEIVING_DEADLINE_S", 0.3)
    with HubServer(buffer) as hub, HubClient(hub.address, hub.token) as client:
        with commits_held(buffer):
            first = client.submit([make_experience(0)])
            wait_for(lambda: hub._flight._receiving._value == 0)
            large = [make_experience(i, completion_text="x" * (4 << 20)) for i in range(1, 5)]
            with pytest.raises(StalledError, match="receiving 1 other calls with rows"):
                client.append(large)
            assert client.ledger("run", 0).leases() == [], "a call without rows must not wait"
        assert first.result(30).seqs == (0,)
        assert client.append(large).seqs == (1, 2, 3, 4)


@pytest.mark.slow
def test_a_call_outlives_a_restart_of_the_hub(buffer: Buffer) -> None:
    first = HubServer(buffer).start()
    port = int(first.address.rpartition(":")[2])
    with HubClient(first.address, first.token) as client:
        client.append([make_experience(0)])
        first.close()
        late = client.submit([make_experience(1)], deadline_s=30)
        began = time.monotonic()
        with pytest.raises(StalledError, match="gave no answer to 'append' within"):
            client.append([make_experience(2)], deadline_s=0.5)
        assert 0.2 < time.monotonic() - began < 20
        with HubServer(buffer, port=port, token=first.token):
            assert late.result(30).seqs == (1,)
            assert client.counts()["experiences"] == 2


def test_a_client_follows_a_hub_that_moves(buffer: Buffer) -> None:
    hubs = [HubServer(buffer).start(), HubServer(buffer).start()]
    now = hubs[0]
    with HubClient(now.address, now.token, locate=lambda _: (now.address, now.token)) as client:
        client.append([make_experience(0)])
        hubs[0].close()
        now = hubs[1]
        assert client.append([make_experience(1)], deadline_s=20).seqs == (1,)
    hubs[1].close()


@pytest.mark.slow
def test_a_client_that_stopped_reading_does_not_hold_up_the_end(
    buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STOP_S", 0.5)
    buffer.append([make_experience(i, completion_text="x" * (4 << 20)) for i in range(12)])
    with HubServer(buffer) as hub, HubClient(hub.address, hub.token) as client:
        rows: Iterator[pa.RecordBatch] = client.batches("experiences")
        next(rows)
        began = time.monotonic()
        hub.close()
        assert time.monotonic() - began < 20  # it waits for its readers for ever
        with pytest.raises(StalledError, match="closed in the middle"):
            list(rows)


@pytest.mark.slow
def test_a_stream_that_is_dropped_ends_at_the_hub(buffer: Buffer, caplog: pytest.LogCaptureFixture) -> None:
    buffer.append([make_experience(i, completion_text="x" * (4 << 20)) for i in range(12)])
    caplog.set_level(logging.WARNING, "rft_data.placement.hub.server")
    with HubServer(buffer) as hub, HubClient(hub.address, hub.token) as client:
        rows = client.batches("experiences")
        next(rows)
        rows.close()
        wait_for(lambda: "closed its connection" in caplog.text)


def test_a_panic_of_a_library_is_an_rft_error_too() -> None:
    class PanicException(BaseException):  # what pyo3 raises is no Exception
        pass

    with (
        pytest.raises(RftError, match="'append' failed with PanicException"),
        server._as_rft_error("append"),
    ):
        raise PanicException
