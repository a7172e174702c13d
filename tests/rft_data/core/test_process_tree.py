"""What a child started is found also in the moment in which it has no environment yet."""

import signal
import subprocess
import threading
from pathlib import Path

import pytest

from rft_data.core import process_tree


def test_a_process_that_is_being_started_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between execve and its new environment a process shows none, and its mark with it."""
    sleeping = subprocess.Popen(["sleep", "600"])
    real, shown = Path(f"/proc/{sleeping.pid}"), tmp_path / str(sleeping.pid)
    shown.mkdir()
    name, _, rest = (real / "stat").read_text().rpartition(")")
    fields = rest.split()
    fields[48] = "0"
    (shown / "stat").write_text(f"{name}) {' '.join(fields)}")
    (shown / "environ").write_bytes(b"")
    monkeypatch.setattr(process_tree, "_PROC", tmp_path)
    started = threading.Timer(0.2, (shown / "environ").write_bytes, [b"RFT_CHILD=/a/b\0"])
    started.start()
    try:
        process_tree.kill_descendants("/a/b", None)
        assert sleeping.wait(10) == -signal.SIGKILL
    finally:
        sleeping.kill()
        started.join()


@pytest.mark.parametrize(("field", "value"), [(0, "Z"), (6, str(0x00200000))])
def test_what_never_has_an_environment_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: int, value: str
) -> None:
    """A zombie, a thread of the kernel."""
    shown = tmp_path / "17"
    shown.mkdir()
    fields = ["S", "1", *["0"] * 50]
    fields[field] = value
    (shown / "stat").write_text(f"17 (one) {' '.join(fields)}")
    (shown / "environ").write_bytes(b"")
    monkeypatch.setattr(process_tree, "_PROC", tmp_path)
    monkeypatch.setattr(process_tree.time, "sleep", lambda _: pytest.fail("it waited"))
    process_tree.kill_descendants("/a/b", None)
