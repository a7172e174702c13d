"""The lock: one process at a time, others see which, and it ends with the process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rft_data.core.errors import BusyError
from rft_data.core.lock import Lock, holder, kept_free

HOLD = """
import sys, time
from pathlib import Path
from rft_data.core.lock import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


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
