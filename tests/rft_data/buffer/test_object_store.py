"""The same buffer on an S3-compatible store: moto's server, in a process of its own.

moto is not imported here: Flask's proxies, once loaded, break vLLM's look over all modules.
"""

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.store import Store
from rft_data.core.errors import FencedError, MissingFileError
from rft_data.core.rows import GroupResult, TaskKey, Ticket
from rft_data.sampler.ledger import Ledger
from tests.ports import free_port
from tests.rft_data.conftest import make_experience
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
boto3 = pytest.importorskip("boto3")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    variables = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT": url,
        "AWS_ALLOW_HTTP": "true",
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        wait_for(lambda: process.poll() is not None or listens(port))
        assert process.poll() is None
        yield url
    finally:
        process.kill()
        process.wait()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def prefix(server: str) -> str:
    bucket = f"bucket-{uuid.uuid4().hex[:8]}"
    boto3.client("s3", endpoint_url=server, region_name="us-east-1").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/runs/buffer"


def kept_group(number: int, seqs: tuple[int, ...]) -> GroupResult:
    ticket = Ticket(f"run/0-{number:08d}", number, 0)
    return GroupResult(ticket, TaskKey("arith", "t0"), (1.0,) * len(seqs), "arrived", 0, seqs)


def test_rows_and_leases_on_an_object_store_survive_their_owner(prefix: str) -> None:
    with Buffer(prefix, durability="power") as buffer:
        assert buffer.append([make_experience(i) for i in range(4)]).seqs == (0, 1, 2, 3)
        ledger = Ledger(buffer, "run", 0)
        lease = ledger.grant("trainer", 0, 0, [kept_group(0, (0, 1))])
        assert buffer.take([3, 0]).column("seq").to_pylist() == [3, 0]
    with Buffer(prefix) as again:
        assert again.append([make_experience(3), make_experience(4)]).seqs == (3, 4)
        assert Ledger(again, "run", 1).find("trainer", 0) == lease
        assert again.take([4, 1]).column("seq").to_pylist() == [4, 1]
        again.compact()
        assert len(again) == 5


def test_a_reader_needs_no_ownership(prefix: str) -> None:
    with pytest.raises(MissingFileError, match="there is no buffer at s3://"):
        Buffer(prefix, read_only=True)
    with Buffer(prefix) as owner:
        owner.append([make_experience(0)])
        reader = Buffer(prefix, read_only=True)
        owner.append([make_experience(1)])  # the reader fenced nobody
        assert len(reader) == 2


def test_the_later_of_two_owners_wins_and_the_earlier_is_fenced(prefix: str) -> None:
    first = Buffer(prefix)
    first.append([make_experience(0)])
    ledger = Ledger(first, "run", 0)
    ledger.attach("trainer")
    with Buffer(prefix) as second:
        assert second.append([make_experience(1)]).seqs == (1,)
        for _ in range(2):  # and it stays fenced
            with pytest.raises(FencedError, match="taken over by another writer"):
                first.append([make_experience(2)])
        with pytest.raises(FencedError, match="taken over by another writer"):
            ledger.grant("trainer", 0, 0, [kept_group(0, (0,))])
        assert second.append([make_experience(2)]).seqs == (2,)
        rows = second.read("experiences", ["seq", "experience_id"]).to_pylist()
        assert [row["seq"] for row in rows] == [0, 1, 2]
        assert len({row["experience_id"] for row in rows}) == 3
    first.close()


def test_rows_committed_while_a_takeover_is_under_way_are_kept(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Buffer(prefix)
    first.append([make_experience(0)])
    real = Store.head
    late = iter([True])

    def head(store: Store, name: str) -> object:
        opened = real(store, name)
        if store is not first._store and name == "experiences" and next(late, False):
            first.append([make_experience(1)])  # between the look at the table and the restore
        return opened

    monkeypatch.setattr(Store, "head", head)
    with Buffer(prefix) as second:
        assert len(second) == 2
        assert second.append([make_experience(1), make_experience(2)]).seqs == (1, 2)
    first.close()
