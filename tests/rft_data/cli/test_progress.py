"""How far a run is, told while a command waits for it."""

from __future__ import annotations

import io
import logging
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rft_data.cli import progress
from rft_data.cli.progress import Pace, following, progress_text
from rft_data.core.logs import StderrHandler
from rft_data.core.words import RunState
from rft_data.run.control import RunControl
from rft_data.run.record import RunRecord
from tests.waiting import wait_for

RECORD = RunRecord(1, "host", 0, 0.0, RunState.RUNNING, 100.0, phase="stage 0: sft", phase_at=60.0)


def test_a_pace_is_over_the_last_counts_and_begins_anew_with_another_phase() -> None:
    pace = Pace()
    for now, done in ((0.0, 1), (5.0, 1), (10.0, 3), (20.0, 5)):
        pace.saw(now, done, 9)
    assert pace.each_s == 5.0
    pace.saw(30.0, 0, 9)
    assert pace.each_s is None
    pace.saw(31.0, 1, 9)
    pace.saw(32.0, 2, 100)
    assert pace.each_s is None


def test_the_line_says_the_pace_where_it_counts_and_else_since_when() -> None:
    pace = Pace()
    assert progress_text(RECORD, pace, 103.0) == "stage 0: sft, for 43 s"
    counted = replace(RECORD, phase="step 3 of 9", done=3, total=9)
    assert progress_text(counted, pace, 103.0) == "step 3 of 9"
    pace.saw(0.0, 1, 9)
    pace.saw(20.0, 3, 9)
    assert progress_text(counted, pace, 103.0) == "step 3 of 9, 10 s each, 1 min left"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LOOK_S", 0.02)
    monkeypatch.setattr(progress, "_LINE_S", 0.02)


@pytest.mark.usefixtures("hurried")
def test_without_a_terminal_there_are_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", told := io.StringIO())
    with following(tmp_path, quiet=False), RunControl(tmp_path) as control:
        control.phase("starting the explorers")
        control._beat()
        wait_for(lambda: "starting the explorers, for " in told.getvalue())
        control.progress("step 3 of 9", 3, 9)
        control._beat()
        wait_for(lambda: "step 3 of 9\n" in told.getvalue())
    assert "\x1b" not in told.getvalue()


@pytest.mark.usefixtures("hurried")
def test_on_a_terminal_there_is_a_bar_and_log_lines_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", told := Terminal())
    line = logging.LogRecord("x", logging.INFO, "", 0, "a line of the log", None, None)
    with following(tmp_path, quiet=False), RunControl(tmp_path) as control:
        control.progress("step 3 of 9", 3, 9)
        control._beat()
        wait_for(lambda: "step 3 of 9" in told.getvalue())
        StderrHandler().handle(line)
    assert "━" in told.getvalue()
    assert "a line of the log\n" in told.getvalue()
    assert sys.stderr is told


@pytest.mark.usefixtures("hurried")
def test_quiet_says_nothing_and_no_color_has_no_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", told := Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    for quiet in (True, False):
        before = set(threading.enumerate())
        with following(tmp_path, quiet=quiet), RunControl(tmp_path) as control:
            control.progress("step 3 of 9", 3, 9)
            control._beat()
            if quiet:
                started = set(threading.enumerate()) - before
                assert "progress" not in {thread.name for thread in started}
            else:
                wait_for(lambda: "step 3 of 9" in told.getvalue())
        assert quiet == (told.getvalue() == "")
        monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in told.getvalue().replace("\x1b[39m", "")
