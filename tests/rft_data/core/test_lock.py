"""The lock: one process at a time, others see which, and it ends with the process."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rft_data.core.errors import BusyError, RftError
from rft_data.core.lock import Lock, PlainLock, holder, kept_free

HOLD = """
import sys, time
from pathlib import Path
from rft_data.core.lock import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert holder(path) == str(other.pid)
        with pytest.raises(BusyError, match="is locked by another process"):
            Lock(path)
        os.kill(other.pid, signal.SIGKILL)
    assert holder(path) == ""
    Lock(path).release()


def test_a_missing_file_holds_nobody_and_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with kept_free(path):
        assert holder(path) == ""
    assert not path.exists()


@pytest.mark.slow
def test_released_it_may_be_taken_again_and_a_look_does_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = Lock(path)
    assert holder(path) == str(os.getpid())
    first.release()
    first.release()
    with kept_free(path), pytest.raises(BusyError):
        Lock(path)
    Lock(path).release()


def test_a_holder_that_wrote_no_id_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = Lock(path)
    path.write_text("")
    assert holder(path) == "unknown"
    lock.release()


def test_a_symbolic_link_is_refused_and_its_target_stays_as_it_is(tmp_path: Path) -> None:
    target, path = tmp_path / "precious", tmp_path / "lock"
    target.write_text("precious")
    path.symlink_to(target)
    for use in (Lock, holder, lambda path: PlainLock(path, alone=True, patience_s=0.0)):
        with pytest.raises(RftError, match="is a symbolic link"):
            use(path)
    assert target.read_text() == "precious"


@pytest.mark.parametrize("content", [b"precious", b"\xff\xfe12"])
def test_a_file_that_is_no_lock_is_refused_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lock"
    path.write_bytes(content)
    with pytest.raises(RftError, match="is not a lock of rft-data"):
        Lock(path)
    assert path.read_bytes() == content
    path.unlink()
    path.mkdir()
    with pytest.raises(RftError, match="is not a file"):
        Lock(path)


def test_what_a_torn_write_left_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for content in (b"", b"123", bytes(8)):
        path.write_bytes(content)
        lock = Lock(path)
        assert path.read_text() == f"{os.getpid()}\n"
        lock.release()


def test_a_holder_whose_id_was_written_over_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = Lock(path)
    path.write_bytes(b"\xff\xfe")
    assert holder(path) == "unknown"
    lock.release()


def test_a_lock_whose_file_is_gone_or_another_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = Lock(path)
    assert first.new
    assert first.held()
    path.unlink()
    assert not first.held()
    second = Lock(path)
    assert second.new
    assert not first.held()
    second.release()
    third = Lock(path)
    assert not third.new
    third.release()
    first.release()


def test_many_share_a_plain_lock_and_one_has_it_alone_after_them(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        PlainLock(path, alone=False, patience_s=0.0),
        PlainLock(path, alone=False, patience_s=0.0),
        pytest.raises(BusyError, match="is locked by another process"),
    ):
        PlainLock(path, alone=True, patience_s=0.0)
    with PlainLock(path, alone=True, patience_s=0.0), pytest.raises(BusyError):
        PlainLock(path, alone=False, patience_s=0.05)
    assert path.read_bytes() == b""


def test_a_plain_lock_is_waited_for_as_long_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = PlainLock(path, alone=True, patience_s=0.0)
    got: list[PlainLock] = []
    waiting = threading.Thread(target=lambda: got.append(PlainLock(path, alone=True, patience_s=60.0)))
    waiting.start()
    assert got == []
    first.release()
    waiting.join()
    got[0].release()
    got[0].release()


def test_a_plain_lock_whose_file_is_removed_while_it_is_waited_for_is_taken_on_the_new_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    first = PlainLock(path, alone=True, patience_s=0.0)
    got: list[PlainLock] = []
    waiting = threading.Thread(target=lambda: got.append(PlainLock(path, alone=True, patience_s=60.0)))
    waiting.start()
    path.unlink()
    first.release()
    waiting.join()
    with pytest.raises(BusyError):
        PlainLock(path, alone=False, patience_s=0.0)
    got[0].release()


def test_a_plain_lock_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PlainLock(tmp_path / "none" / "lock", alone=False, patience_s=0.0)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_plain_lock_ends_with_its_process_and_not_with_what_that_forked(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = PlainLock(path, alone=True, patience_s=0.0)
    asleep, awake = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(awake)
        os.read(asleep, 1)
        os._exit(0)
    os.close(asleep)
    lock.release()
    try:
        PlainLock(path, alone=True, patience_s=10.0).release()
    finally:
        os.close(awake)
        os.waitpid(child, 0)
