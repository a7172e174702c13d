"""The end of a test run names each reason to skip once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(3))
@pytest.mark.skipif(True, reason="no such disk; to run them: buy one")
def test_disk(n): ...

def test_engine():
    pytest.importorskip("engine_to_come")

def test_passes(): ...
"""


def lines(folder: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-p", "tests.skips", "-p", "no:cacheprovider", *options, "."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("skipped: ")]


@pytest.mark.slow
def test_each_reason_is_one_line_that_says_what_it_takes(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_whole.py").write_text('import pytest\npytest.importorskip("ray_to_come")\n')
    assert lines(tmp_path, "-p", "no:xdist") == [
        "skipped: 3 tests: no such disk; to run them: buy one",
        "skipped: 1 test: could not import 'engine_to_come': No module named 'engine_to_come'; to run them: "
        "`make setup` installs it",
        "skipped: 1 whole file: could not import 'ray_to_come': No module named 'ray_to_come'; to run them: "
        "`make setup` installs it",
    ]


@pytest.mark.slow
def test_workers_skips_are_told_too(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    assert lines(tmp_path, "-n", "1", "-k", "disk") == [
        "skipped: 3 tests: no such disk; to run them: buy one"
    ]


@pytest.mark.slow
def test_marks_that_a_command_leaves_out_are_told(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: s\n    heavy: h\n")
    (tmp_path / "test_some.py").write_text("def test_passes(): ...\n")
    heavy = "skipped: the tests marked 'heavy'; to run them: make test HEAVY=yes"
    slow = "skipped: the tests marked 'slow'; to run them: make test"
    assert lines(tmp_path, "-n", "1", "-m", "not heavy") == [heavy]
    assert lines(tmp_path, "-p", "no:xdist", "-m", "not slow and not heavy") == [heavy, slow]


@pytest.mark.slow
def test_nothing_skipped_is_said(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("def test_passes(): ...\n")
    assert lines(tmp_path, "-p", "no:xdist") == ["skipped: nothing"]
