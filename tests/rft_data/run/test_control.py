import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.pages import exit_codes
from rft_data.cli.edge import INTERRUPTED
from rft_data.cli.run_status import _whole_lines, run_status_app
from rft_data.core.errors import BusyError, MissingFileError, StalledError
from rft_data.core.words import RunState, StopRequest
from rft_data.run import control as run_control
from rft_data.run.control import STOPPED_EXIT, RunControl
from rft_data.run.record import (
    STOP_FILE,
    RunRecord,
    ask_to_stop,
    held,
    read_record,
    standing,
    write_record,
)
from tests.template import FORK
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]

# A conductor as the loop is one: names its phase once and works in small pieces. After each it looks whether
# it is to stop, and then checkpoints.
_SCRIPT = """
import logging, sys, time
from pathlib import Path
import typer
from rft_data.cli.edge import edge
from rft_data.run.control import RunControl
from rft_data.core.errors import StalledError, Stopped

log = logging.getLogger("conductor")

def main(run_dir: Path, how: str) -> None:
    with edge(again=f"Continue with: rft resume {run_dir}"), RunControl(run_dir, attempt=2) as control:
        conduct(control, run_dir, how)

def conduct(control, run_dir, how):
    log.info("at work")
    control.phase("training")
    (run_dir / "ready").touch()
    step = 0
    while how != "done":
        step += 1
        control.progress(f"step {step} of 9", step, 9)
        control.heard("trainer")
        time.sleep(0.02)
        if how == "fails" and step == 5:
            raise StalledError("the explorer did not answer for 5 s")
        if how == "breaks" and step == 5:
            raise ZeroDivisionError("a defect")
        if how == "hangs":
            time.sleep(600)
        if control.stop_requested:
            log.info("draining")
            (run_dir / "checkpoint").touch()
            raise Stopped(f"stopped at step {step} of 9, as asked")

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)
app()
"""


@contextmanager
def conductor(run_dir: Path, how: str = "works") -> Iterator[subprocess.Popen[str]]:
    """The script in a process of its own, at work."""
    command = [sys.executable, "-c", FORK + _SCRIPT, str(run_dir), how]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: (run_dir / "ready").exists() or process.poll() is not None)
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.02)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    stderr = process.communicate(timeout=60)[1]
    return process.returncode, stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_drains_and_exits_130(tmp_path: Path, number: signal.Signals) -> None:
    with conductor(tmp_path) as process:
        assert standing(tmp_path).state == "running"
        process.send_signal(number)
        code, stderr = ended(process)
    assert code == STOPPED_EXIT == 130
    assert (tmp_path / "checkpoint").exists()
    assert f"asked to stop ({number.name}): finishing what is under way" in stderr
    assert "of 9, as asked" in stderr
    record = read_record(tmp_path)
    assert record is not None
    assert (record.state, record.exit_code, record.attempt) == ("stopped", 130, 2)
    assert "of 9, as asked" in record.why
    assert not held(tmp_path)


@pytest.mark.slow
def test_the_second_signal_ends_a_run_that_hangs(tmp_path: Path) -> None:
    with conductor(tmp_path, "hangs") as process:
        process.send_signal(signal.SIGINT)
        until(lambda: standing(tmp_path).state == "stopping")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        code, stderr = ended(process)
    assert code == 130
    assert not (tmp_path / "checkpoint").exists()
    assert standing(tmp_path).why == "asked by SIGINT, ended at once"
    assert "Traceback" not in stderr
    assert f"Continue with: rft resume {tmp_path}" in stderr


@pytest.mark.slow
def test_rft_stop_drains_from_outside(tmp_path: Path) -> None:
    with conductor(tmp_path) as process:
        answer = ask_to_stop(tmp_path, now=False)
        code, _ = ended(process)
    assert code == 130
    assert "checkpoint" in answer or "stopped" in answer  # it may have ended before we looked
    assert (tmp_path / "checkpoint").exists()
    assert not (tmp_path / STOP_FILE).exists()


@pytest.mark.slow
def test_rft_stop_now_ends_a_run_that_hangs(tmp_path: Path) -> None:
    with conductor(tmp_path, "hangs") as process:
        assert ask_to_stop(tmp_path, now=True).startswith("the run is stopped")
        assert ended(process)[0] == 130
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.slow
def test_stopping_what_does_not_run_says_so(tmp_path: Path) -> None:
    with conductor(tmp_path, "done") as process:
        assert ended(process)[0] == 0
    assert ask_to_stop(tmp_path, now=False) == "nothing to stop: the run is finished"
    with pytest.raises(MissingFileError, match="holds no run"):
        ask_to_stop(tmp_path / "nowhere", now=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "why"),
    [
        ("fails", 75, "StalledError: the explorer did not answer for 5 s"),
        ("breaks", 1, "ZeroDivisionError: a defect"),
    ],
)
def test_a_failure_is_recorded_and_its_traceback_is_in_the_log(
    tmp_path: Path, how: str, code: int, why: str
) -> None:
    with conductor(tmp_path, how) as process:
        found, stderr = ended(process)
    assert found == code
    record = read_record(tmp_path)
    assert record is not None
    assert (record.state, record.exit_code, record.why) == ("failed", code, why)
    assert ("Traceback" in stderr) == (how == "breaks")
    text = (tmp_path / "log.txt").read_text()
    assert "conductor: at work" in text
    assert "Traceback" in text
    assert why in text


@pytest.mark.slow
def test_a_killed_run_shows_as_died(tmp_path: Path) -> None:
    with conductor(tmp_path) as process:
        process.kill()
        ended(process)
    now = standing(tmp_path)
    assert (now.state, now.alive) == ("died", False)
    assert f"process {process.pid}" in now.why
    with RunControl(tmp_path, attempt=3):  # and may be taken over at once
        assert standing(tmp_path).state == "running"


@pytest.mark.parametrize(
    ("before", "after"), [(RunState.RUNNING, RunState.STOPPED), (RunState.STOPPED, RunState.RUNNING)]
)
def test_a_run_that_ends_or_begins_while_it_is_looked_at_has_not_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: RunState, after: RunState
) -> None:
    def record(state: RunState) -> RunRecord:
        return RunRecord(7, "a", 0, time.time(), state, time.time())

    def looked(run_dir: Path) -> bool:
        """No process holds it; by the time that is known another record was written."""
        answers.append(read_record(run_dir) == record_after and after == RunState.RUNNING)
        write_record(run_dir, record_after, durable=False)
        return answers[-1]

    answers: list[bool] = []
    record_after = record(after)
    write_record(tmp_path, record(before), durable=False)
    monkeypatch.setattr("rft_data.run.record.held", looked)
    assert standing(tmp_path).state == after
    assert answers


@pytest.mark.slow
def test_a_frozen_run_shows_as_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rft_data.run.record.SILENT_S", 0.5)
    monkeypatch.setattr("rft_data.run.record._ANSWER_S", 0.3)
    with conductor(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: standing(tmp_path).state == "silent")
            assert standing(tmp_path).alive
            with pytest.raises(StalledError, match=rf"process {process.pid} did not answer within 0.3 s"):
                ask_to_stop(tmp_path, now=False)
        finally:
            process.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_a_request_to_stop_that_the_disk_refuses_is_passed_on_at_the_next_look(tmp_path: Path) -> None:
    tries = []

    def act() -> None:
        tries.append(time.time())
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "no room")

    with RunControl(tmp_path) as control:
        control.phase("training a stage")
        control.when_asked_to_stop(act)
        (tmp_path / STOP_FILE).write_text(StopRequest.DRAIN)
        until(lambda: len(tries) == 3)
        until(lambda: (found := read_record(tmp_path)) is not None and found.beat_at > tries[-1])
    assert len(tries) == 3, "passed on once"


@pytest.mark.slow
def test_the_heartbeat_carries_phase_and_roles(tmp_path: Path) -> None:
    with RunControl(tmp_path) as control:
        control.phase("evaluating")
        control.heard("explorer-1")
        until(lambda: (found := read_record(tmp_path)) is not None and found.phase == "evaluating")
        record = read_record(tmp_path)
        assert record is not None
        assert record.heard["explorer-1"] == pytest.approx(time.time(), abs=60)
        assert (record.pid, record.state, record.exit_code) == (os.getpid(), "running", None)
        control.counting(lambda: (4, 40))
        until(lambda: (found := read_record(tmp_path)) is not None and found.done == 4)
        assert (counted := read_record(tmp_path)) is not None
        assert (counted.phase, counted.total) == ("evaluating, step 4 of 40", 40)
        control.counting(lambda: None)  # nothing is written down yet
        until(lambda: (found := read_record(tmp_path)) is not None and found.phase == "evaluating")
        assert (uncounted := read_record(tmp_path)) is not None
        assert uncounted.total is None
        first = record.beat_at
        until(lambda: (found := read_record(tmp_path)) is not None and found.beat_at > first)
    final = read_record(tmp_path)
    assert final is not None
    assert (final.state, final.phase, final.exit_code) == ("finished", "", 0)


@pytest.mark.slow
def test_a_step_is_recorded_when_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_control, "_BEAT_S", 1000.0)
    with RunControl(tmp_path) as control:
        for step in (1, 2):
            control.progress(f"step {step} of 2", step, 2)
            wait_for(lambda: getattr(read_record(tmp_path), "done", None) == step)  # noqa: B023


@pytest.mark.slow
def test_one_process_runs_a_folder(tmp_path: Path) -> None:
    with RunControl(tmp_path), pytest.raises(BusyError, match=rf"is being run by process {os.getpid()} on"):
        RunControl(tmp_path).__enter__()


def test_signal_handlers_and_log_handlers_are_put_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    handlers = list(logging.getLogger().handlers)
    with RunControl(tmp_path):
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert logging.getLogger().handlers == handlers


def test_off_the_main_thread_a_stop_file_is_the_way(tmp_path: Path) -> None:
    """As in an actor, whose methods run in some thread."""
    seen: list[tuple[bool, bool]] = []

    def conduct() -> None:
        with RunControl(tmp_path) as control:
            until(lambda: control.stop_now)
            seen.append((control.stop_requested, control.stop_now))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=conduct)
    thread.start()
    until(lambda: held(tmp_path) and read_record(tmp_path) is not None)
    answer = ask_to_stop(tmp_path, now=True)
    thread.join(60)
    assert seen == [(True, True)]
    assert answer.startswith("the run is ")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_an_old_stop_request_does_not_end_a_new_start(tmp_path: Path) -> None:
    (tmp_path / STOP_FILE).write_text("now")
    with RunControl(tmp_path) as control:
        time.sleep(0.3)
        assert not control.stop_requested


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_costs_log_lines_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    with RunControl(tmp_path):
        for _ in range(3):
            logging.getLogger("conductor").warning("a line")
    assert sum("cannot be written to" in line for line in caplog.messages) == 1


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    for text in ("", "{", "[]", '{"pid": 1}', "\x00\xff"):
        (tmp_path / "run.pid").write_text(text)
        assert read_record(tmp_path) is None
        assert standing(tmp_path).state == "unknown"


# --- commands --------------------------------------------------------------------------------------------


def rft(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(run_status_app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_rft_logs_shows_the_end_of_the_log(tmp_path: Path) -> None:
    with RunControl(tmp_path):
        for i in range(60):
            logging.getLogger("conductor").warning("line %d", i)
    code, out, _ = rft("logs", str(tmp_path), "-n", "3")
    assert code == 0
    assert [line.rpartition(": ")[2] for line in out.splitlines()] == ["line 57", "line 58", "line 59"]
    assert rft("logs", str(tmp_path), "-n", "0")[1] == ""
    last = rft("logs", str(tmp_path), "-n", "2", "--json")[1].splitlines()
    assert [json.loads(line)["line"] for line in last] == out.splitlines()[-2:]
    assert list(_whole_lines(["one\ntw", "o\n", "\nthr", "ee"])) == ["one", "two", "", "three"]


@pytest.mark.slow
def test_rft_logs_follows_until_the_run_ends(tmp_path: Path) -> None:
    with conductor(tmp_path) as process:
        threading.Timer(0.5, process.send_signal, [signal.SIGTERM]).start()
        code, out, _ = rft("logs", str(tmp_path))
    assert code == 0
    assert "conductor: at work" in out
    assert "conductor: draining" in out  # was written after we began to look


def test_rft_stop_and_logs_know_a_folder_without_a_run(tmp_path: Path) -> None:
    for command in ("stop", "logs"):
        code, _, err = rft(command, str(tmp_path))
        assert (code, "holds no run" in err) == (2, True)


def test_rft_stop_prints_what_came_of_it(tmp_path: Path) -> None:
    with RunControl(tmp_path):
        pass
    said = "nothing to stop: the run is finished"
    assert rft("stop", str(tmp_path)) == (0, f"{said}\n", "")
    found = json.loads(rft("stop", str(tmp_path), "--json")[1])
    assert found == {"run_dir": str(tmp_path), "state": "finished", "said": said}


# --- exit codes ------------------------------------------------------------------------------------------


def test_the_page_of_exit_codes_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "exit_codes.md").read_text() == exit_codes.page()


def test_every_error_has_a_documented_code() -> None:
    from rft_data.core import errors

    ours = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.RftError)]
    assert {e.exit_code for e in ours} <= set(exit_codes.MEANING)
    assert sum(len(exit_codes.names(code)) for code in exit_codes.MEANING) == len(ours)
    assert INTERRUPTED == STOPPED_EXIT
    assert json.loads(json.dumps(sorted(exit_codes.MEANING))) == [0, 1, 2, 3, 4, 75, 130]


@pytest.mark.slow
def test_every_test_named_on_the_page_of_faults_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "faults.md").read_text()))
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert len(named) > 30
    assert named - there == set()
