import logging
import socket
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from rft_data.buffer import Buffer, faults
from rft_data.buffer.validation import encode
from rft_data.core import errors
from rft_data.core.errors import (
    BusyError,
    ConflictError,
    DiskFullError,
    RftError,
    RowError,
    StalledError,
    TokenError,
)
from rft_data.core.failpoints import armed
from rft_data.placement.hub import HubClient, HubServer, arrow_rows, server, serving, wire
from rft_data.placement.hub.frames import _HEAD, Kind
from rft_data.placement.hub.wire import ERRORS
from tests.rft_data.conftest import make_experience
from tests.rft_data.placement.hub.conftest import answer, connected, wait_for


@pytest.mark.slow
def test_a_hub_listens_on_loopback_under_a_token_of_its_own(buffer: Buffer) -> None:
    hubs = [HubServer(buffer) for _ in range(2)]
    assert len({hub.token for hub in hubs}) == 2
    assert min(len(hub.token) for hub in hubs) >= 32
    with pytest.raises(RftError, match="no address before it is started"):
        _ = hubs[0].address
    with hubs[0] as hub:
        assert hub.start().address.startswith("hub://127.0.0.1:")
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


@pytest.mark.parametrize(
    "command",
    [b"", b"{", b"[]", b'{"method": "counts"}', b'{"method": "__init__", "args": {}, "rows": null}'],
)
def test_a_malformed_call_is_answered_with_an_error(hub: HubServer, command: bytes) -> None:
    raw = connected(hub)
    raw.send(Kind.CALL, command, 10)
    with pytest.raises(RftError, match="hub call"):
        answer(raw)
    raw.close()


def test_a_connection_with_other_frames_is_told_so_and_closed(hub: HubServer) -> None:
    raw = connected(hub)
    raw.send(Kind.ROWS, b"x", 10)
    with pytest.raises(RowError, match="a frame of kind 3; wanted is one of CALL"):
        answer(raw)
    with pytest.raises(EOFError):
        answer(raw)
    raw.close()


def test_an_append_cut_off_while_it_is_sent_stores_nothing(
    buffer: Buffer, hub: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    rows = arrow_rows.encoded(encode([make_experience(i) for i in range(4)])[0])
    raw = connected(hub)
    raw.send(Kind.CALL, wire.encode_call("append", {"deadline_s": 5}, 4), 10)
    raw._socket.sendall(_HEAD.pack(Kind.ROWS, rows.size) + rows.to_pybytes()[:-1])
    raw.close()
    wait_for(lambda: "ended its connection" in caplog.text)
    assert len(buffer) == 0


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_class_of_error_crosses_with_its_message(name: str) -> None:
    sent = ERRORS[name]("the thing, what was found, é")
    with pytest.raises(RftError) as caught:
        wire.decode_answer(wire.encode_error(sent))
    assert type(caught.value) is type(sent)
    assert str(caught.value) == str(sent)


def test_errors_are_all_of_ours() -> None:
    named_otherwise = {"Stopped", "ContextOverflow", "BudgetSpent"}
    assert set(ERRORS) == {name for name in vars(errors) if name.endswith("Error")} | named_otherwise


@pytest.mark.slow
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


@pytest.mark.slow
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
            arrow_rows.check_form(pa.table({"x": column}))
    not_utf8 = pa.array([b"\xff"]).view(pa.string())
    arrow_rows.check_form(pa.table({"x": not_utf8, "y": pa.array([[1]])}))  # for the door to quarantine


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


@pytest.mark.slow
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
        with pytest.raises(StalledError, match="in the middle"):
            list(rows)


@pytest.mark.slow
def test_a_stream_that_is_dropped_ends_at_the_hub(buffer: Buffer, caplog: pytest.LogCaptureFixture) -> None:
    buffer.append([make_experience(i, completion_text="x" * (4 << 20)) for i in range(12)])
    caplog.set_level(logging.WARNING, "rft_data.placement.hub.serving")
    with HubServer(buffer) as hub, HubClient(hub.address, hub.token) as client:
        rows = client.batches("experiences")
        next(rows)
        rows.close()
        wait_for(lambda: "ended its connection" in caplog.text)


def test_a_panic_of_a_library_is_an_rft_error_too() -> None:
    class PanicException(BaseException):  # what pyo3 raises is no Exception
        pass

    with (
        pytest.raises(RftError, match="'append' failed with PanicException"),
        serving._as_rft_error("append"),
    ):
        raise PanicException
