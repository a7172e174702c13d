"""What comes from the template is a child like any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import template

pytestmark = pytest.mark.skipif(
    subprocess._fork_exec is template._real,  # type: ignore[attr-defined]
    reason="every child starts afresh here (RFT_TEST_FRESH, or another system than Linux)",
)
RFT = [sys.executable, "-m", template.COMMAND]


def test_a_child_has_the_folder_environment_and_streams_that_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def graded(task, completion): return 1.0\n")
    (tmp_path / "mine.yaml").write_text("recipe: 1\nname: ${env:RFT_NAMED}\n")
    given = {**os.environ, "RFT_NAMED": "there was no such mode"}
    done = subprocess.run(
        [*RFT, "recipe", "validate", "mine.yaml"], cwd=tmp_path, env=given, capture_output=True, text=True
    )
    afresh = subprocess.run(
        ["env", *RFT, "recipe", "validate", "mine.yaml"],
        cwd=tmp_path,
        env=given,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (afresh.returncode, afresh.stdout, afresh.stderr)
    assert done.returncode == 2
    assert "mine.yaml" in done.stderr


def test_it_is_a_child_of_this_process_and_ends_as_it_is_told(tmp_path: Path) -> None:
    command = [*RFT, "view", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        process = psutil.Process(child.pid)
        assert process.ppid() == os.getpid()
        assert any(word.endswith("template.py") for word in process.cmdline())
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("name", "suits"),
    [("RFT_ANY", True), ("HF_ENDPOINT", False), ("PYTHONPATH", True)],
)
def test_a_variable_that_imports_read_needs_a_process_of_its_own(name: str, suits: bool) -> None:
    assert template._suits({**template._environment_here, name: "other"}) is suits
