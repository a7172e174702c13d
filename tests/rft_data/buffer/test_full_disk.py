"""A disk with no room: what was acknowledged stays readable, and work goes on when there is room again."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rft_data.buffer import Buffer, faults
from rft_data.core.errors import DiskFullError
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import TaskKey
from rft_data.sampler.ledger import Ledger
from tests.rft_data.conftest import make_experience
from tests.small_disk import small_disk_at

GROUP = GroupResult(Ticket("run/0-00000000", 0, 0), TaskKey("arith", "t0"), (1.0,), "arrived", 0, (0,))


@pytest.mark.slow
def test_append_is_refused_while_the_disk_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Buffer(tmp_path / "b") as buffer:
        buffer.append([make_experience(0)])
        monkeypatch.setattr(faults, "RESERVE_BYTES", 1 << 60)
        with pytest.raises(DiskFullError, match=r"Free some space .*, then resume or send the rows again"):
            buffer.append([make_experience(1)])
        assert len(buffer) == 1
        ledger = Ledger(buffer, "run", 0)
        ledger.grant("trainer", 0, 0, [GROUP])  # the reserve is there to finish with
        monkeypatch.undo()
        assert buffer.append([make_experience(1)]).seqs == (1,)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    with small_disk_at(tmp_path / "disk", "24m") as folder:
        yield folder


@pytest.mark.slow
def test_a_full_disk_costs_no_acknowledged_row_and_appends_go_on_when_there_is_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "RESERVE_BYTES", 0)  # so that the disk itself says no
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(16 << 20))
    acked: list[int] = []
    with Buffer(small_disk / "b") as buffer:
        refused = None
        for number in range(10_000):
            rows = [
                make_experience(8 * number + i, completion_text=random_text(8 * number + i)) for i in range(8)
            ]
            try:
                acked += [seq for seq in buffer.append(rows).seqs if seq is not None]
            except DiskFullError:
                refused = rows
                break
        assert refused is not None
        assert len(acked) > 80
        with pytest.raises(DiskFullError, match=r"has no room.*Free some space"):
            buffer.append(refused)
        assert buffer.take(acked).column("seq").to_pylist() == acked
        with Buffer(buffer.root, read_only=True) as reader:
            assert reader.take(acked).column("seq").to_pylist() == acked
        ballast.unlink()
        again = buffer.append(refused)
        assert again.seqs == tuple(range(len(acked), len(acked) + 8))
        assert Ledger(buffer, "run", 0).grant("trainer", 0, 0, [GROUP]).seqs == (0,)
        buffer.compact()
    with Buffer(small_disk / "b") as reopened:
        assert reopened.take(acked).column("seq").to_pylist() == acked
        assert len(reopened) == len(acked) + 8


@pytest.mark.slow
def test_the_first_write_to_a_table_on_a_full_disk_says_so_and_works_later(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "RESERVE_BYTES", 0)
    ballast = small_disk / "ballast"
    with Buffer(small_disk / "b") as buffer:
        buffer.append([make_experience(0)])
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(1 << 12))
                file.flush()
        with pytest.raises(DiskFullError, match="Free some space"):
            buffer.add_payload(b"image", "image/png")
        ballast.unlink()
        assert buffer.payload(buffer.add_payload(b"image", "image/png")) == ("image/png", b"image")


def random_text(number: int) -> str:
    """16 KiB that do not compress."""
    return hashlib.shake_128(str(number).encode()).hexdigest(8 << 10)
