"""What a child started is found also in the moment in which it has no environment yet."""

import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from rft_data.core import process_tree
from tests.waiting import LIMIT_S


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

    def sleep(_: float) -> None:
        (shown / "environ").write_bytes(b"RFT_CHILD=/a/b\0")

    monkeypatch.setattr(process_tree, "time", SimpleNamespace(sleep=sleep))
    try:
        process_tree.kill_descendants("/a/b", None)
        assert sleeping.wait(LIMIT_S) == -signal.SIGKILL
    finally:
        sleeping.kill()


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
    waited = SimpleNamespace(sleep=lambda _: pytest.fail("it waited"))
    monkeypatch.setattr(process_tree, "time", waited)  # the module `time` is that of other threads too
    process_tree.kill_descendants("/a/b", None)
