"""Parts of files that many fetch at the same time: read once, sent in turns, whole."""

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.core.files import file_digest
from rft_data.core.words import HubRole
from rft_data.placement.hub import HubClient, HubServer
from rft_data.placement.hub.access import make_token
from rft_data.placement.hub.address import parse_address
from rft_data.placement.hub.arrow_rows import decoded
from rft_data.placement.hub.file_parts import PART_BYTES, FileParts
from rft_data.placement.hub.frames import Channel, Kind
from rft_data.placement.hub.run_files import RunFolders
from rft_data.placement.hub.turns import Turns

CLIENTS = 8
BIG = 16 << 20
"""More than the system keeps for a connection whose other end reads nothing."""


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    """Two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    ends = Channel(one), Channel(other)
    yield ends
    for end in ends:
        end.close()


other_pair = pair


def received(channel: Channel) -> bytes:
    head = channel.head({Kind.ROWS: 1 << 30}, 30, 30)
    return channel.body(head, 30).to_pybytes()


def test_part_is_shared_while_it_is_held_and_not_kept(tmp_path: Path) -> None:
    path, parts = tmp_path / "file", FileParts()
    path.write_bytes(b"0123456789")
    held = parts.part(path, 4)
    assert held is parts.part(path, 4)
    assert held is not parts.part(path, 5)
    [batch] = decoded(held.value())
    assert batch.column("data").to_pylist() == [b"456789"]
    assert parts.held == 1
    del held
    assert parts.held == 0


def test_changed_file_is_read_and_digested_again(tmp_path: Path) -> None:
    path, parts = tmp_path / "file", FileParts()
    path.write_bytes(b"before")
    first, digest = parts.part(path, 0), parts.digest(path)
    assert digest == file_digest(path)
    path.write_bytes(b"later")
    [batch] = decoded(parts.part(path, 0).value())
    assert batch.column("data").to_pylist() == [b"later"]
    assert parts.digest(path) == file_digest(path) != digest
    assert first is not parts.part(path, 0)


def test_digests_asked_for_last_are_kept_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.placement.hub.file_parts._DIGESTS", 2)
    parts = FileParts()
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for path in (one, two, three):
        path.write_bytes(b"before")
    before = parts.digest(one)
    parts.digest(two)
    for path in (one, two):  # the size and the time of the last change stay: what is kept is believed
        times = path.stat()
        path.write_bytes(b"later!")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert parts.digest(one) == before
    parts.digest(three)  # no room for two, which was asked for longest ago
    assert parts.digest(one) == before
    assert parts.digest(two) == file_digest(two) != before


@pytest.mark.slow
def test_client_that_reads_nothing_keeps_no_other_waiting(
    pair: tuple[Channel, Channel], other_pair: tuple[Channel, Channel]
) -> None:
    turns, content = Turns(at_once=1), os.urandom(BIG)
    with ThreadPoolExecutor(2) as threads:
        stuck = threads.submit(turns.send, pair[0], Kind.ROWS, pa.py_buffer(content), 60)
        served = threads.submit(turns.send, other_pair[0], Kind.ROWS, pa.py_buffer(content), 60)
        assert received(other_pair[1]) == content
        served.result(30)
        assert not stuck.done()
        assert received(pair[1]) == content
        stuck.result(30)


def test_client_that_reads_nothing_is_given_up(pair: tuple[Channel, Channel]) -> None:
    with pytest.raises(TimeoutError, match="took nothing"):
        Turns(at_once=1).send(pair[0], Kind.ROWS, pa.py_buffer(bytes(BIG)), 0.2)


def test_bytes_that_keep_coming_past_the_deadline_are_not_waited_for(pair: tuple[Channel, Channel]) -> None:
    sender, receiver = pair
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(sender.send, Kind.ROWS, pa.py_buffer(bytes(BIG)), 30)
        head = receiver.head({Kind.ROWS: BIG}, 30, 30)
        with pytest.raises(TimeoutError, match=f"of {BIG} bytes have not come in time"):
            receiver.body(head, 0)
        receiver.close()
        with pytest.raises(OSError):  # noqa: PT011 - a reset, or a broken pipe
            sent.result(30)


@pytest.mark.slow
def test_clients_that_fetch_a_file_at_the_same_time_over_tls_get_it_whole(tmp_path: Path) -> None:
    weights = tmp_path / "run" / "weights" / "v1"
    weights.mkdir(parents=True)
    content = os.urandom(PART_BYTES + (1 << 20) + 7)
    (weights / "model").write_bytes(content)
    together = threading.Barrier(CLIENTS)

    def fetched(address: str, token: str) -> bytes:
        with HubClient(address, token) as client:
            together.wait(60)
            parts = []
            for offset in (0, PART_BYTES):
                where = {"folder": str(weights), "name": "model", "offset": offset}
                parts += client.connection.rows("read_file", where, deadline_s=60)["data"].to_pylist()
            return b"".join(parts)

    folders = RunFolders(tmp_path / "run")
    with Buffer(tmp_path / "buffer") as buffer, HubServer(buffer, host="0.0.0.0", folders=folders) as hub:  # noqa: S104
        address = str(replace(parse_address(hub.address), host="127.0.0.1"))
        tokens = [make_token(hub.token, HubRole.EXPLORER, f"e{n}") for n in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as threads:
            assert set(threads.map(fetched, [address] * CLIENTS, tokens)) == {content}
