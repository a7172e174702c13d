"""Run control, the side that runs: the run's record, its heartbeat, its log file, and requests to stop.

The first SIGINT, SIGTERM or `rft stop` asks for a drain: the loop reads `stop_requested`, finishes what is
under way, checkpoints and ends. The second, or `rft stop --now`, raises KeyboardInterrupt in the main thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType

from rft_data.core.errors import BusyError, Stopped
from rft_data.core.files import make_folder
from rft_data.core.lock import Lock
from rft_data.core.logs import PlainFormatter
from rft_data.core.masking import masked
from rft_data.core.words import RunState, StopRequest
from rft_data.run.record import (
    HUB_FILE,
    LOCK_FILE,
    LOG_FILE,
    STOP_FILE,
    RunRecord,
    read_record,
    write_record,
)

log = logging.getLogger(__name__)

STOPPED_EXIT = Stopped.exit_code
"""Exit code of a run that ended because it was asked to."""
_BEAT_S = 1.0
_LOOK_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LONGEST_WHY = 2000
_WHAT_STOPPING_MEANS = "finishing what is under way, then a checkpoint; ask again to end at once"


class RunControl:
    """One start of a run, from `with` to its end; used by the process that conducts it."""

    def __init__(self, run_dir: Path, *, attempt: int = 0) -> None:
        """Nothing is written before `__enter__`.

        Args: attempt: how often the run was started before.
        """
        self._dir = run_dir
        self._record = RunRecord(
            os.getpid(),
            socket.gethostname(),
            attempt,
            time.time(),
            RunState.RUNNING,
            time.time(),
        )
        self._heard: dict[str, float] = {}
        self._phase, self._phase_at = "", time.time()
        self._counts: tuple[int | None, int | None] = (None, None)
        self._counted: Callable[[], tuple[int, int] | None] | None = None
        self._on_stop: Callable[[], None] | None = None
        self._asked = ""
        self._now = False
        self._closing = False
        self._announced = False
        self._ended = threading.Event()
        self._handlers: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
        self._thread = threading.Thread(target=self._watch, name="run-control", daemon=True)

    @property
    def stop_requested(self) -> bool:
        """Whether a stop was requested; the loop reads this between pieces of work."""
        return bool(self._asked)

    @property
    def state(self) -> RunState:
        """`running`, or `stopping` once a stop was asked for."""
        return RunState.STOPPING if self._asked else RunState.RUNNING

    @property
    def stop_now(self) -> bool:
        """Whether the run is to end without a checkpoint; the main thread gets a KeyboardInterrupt."""
        return self._now

    def phase(self, text: str) -> None:
        """Record what the run begins to do; shown by `rft status`.

        Raises: Stopped if a stop was requested; completed phases are skipped when the run is continued.
        """
        if self.stop_requested:
            raise Stopped(f"stopped before {text}, as asked")
        self._phase = text
        self._phase_at = time.time()
        self._counts, self._counted, self._on_stop = (None, None), None, None

    def when_asked_to_stop(self, act: Callable[[], None]) -> None:
        """Call `act` once if a stop is asked for before the next phase; what it does must take no time."""
        self._on_stop = act

    def counting(self, steps: Callable[[], tuple[int, int] | None]) -> None:
        """Record, until the next phase, the steps taken and all, as the function tells at each beat."""
        self._counted = steps

    def runs_programs_in(self, sandbox: str) -> None:
        """Record the sandbox of the model's programs, as in the record; shown by `rft status`."""
        self._record = replace(self._record, sandbox=sandbox)

    def progress(self, text: str, done: int, total: int) -> None:
        """Record how far the present phase is, in words and in steps or groups; shown by `rft status`."""
        self._phase, self._counts = text, (done, total)

    def heard(self, role: str) -> None:
        """Record that a role is at work; shown by `rft status`."""
        self._heard[role] = time.time()

    def __enter__(self) -> RunControl:
        """Take the run's lock, open its log, start the heartbeat and handle signals.

        Raises: BusyError if another process holds the lock.
        """
        make_folder(self._dir)
        self._lock = self._claim()
        for left in (STOP_FILE, HUB_FILE):  # of a start that was killed
            (self._dir / left).unlink(missing_ok=True)
        self._log = RunLog(self._dir / LOG_FILE)
        logging.getLogger().addHandler(self._log)
        write_record(self._dir, self._record, durable=True)
        self._thread.start()
        if threading.current_thread() is threading.main_thread():  # in an actor, `rft stop` is the way
            self._handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record how the run ended, and release its lock. The traceback of a failure goes to the log file.

        Finished if nothing was raised; stopped after Stopped (its text says how far the run came) or a
        KeyboardInterrupt; failed otherwise.
        """
        self._closing = True
        self._ended.set()
        self._thread.join(5 * _BEAT_S)
        self._announce()
        self._record = _ended(replace(self._present(), phase=""), err)
        if self._record.state == RunState.FAILED and err is not None:
            self._log.handle(_traceback(err, trace))
        with contextlib.suppress(OSError):  # the disk is full: the lock still says that the run has ended
            write_record(self._dir, self._record, durable=True)
        (self._dir / STOP_FILE).unlink(missing_ok=True)
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        logging.getLogger().removeHandler(self._log)
        with contextlib.suppress(OSError):
            self._log.close()
        self._lock.release()

    def _claim(self) -> Lock:
        try:
            return Lock(self._dir / LOCK_FILE)
        except BusyError as err:
            record = read_record(self._dir)
            who = "another process" if record is None else f"process {record.pid} on {record.host}"
            raise BusyError(
                f"the run in {self._dir} is being run by {who}; wait for it, or end it with: "
                f"rft stop {self._dir}"
            ) from err

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Record the signal and do nothing else: the interrupted code may hold the lock of a log handler."""
        if self._closing:
            return
        if self._asked or self._now:
            raise KeyboardInterrupt
        self._asked = signal.Signals(number).name

    def _watch(self) -> None:
        """The heartbeat's thread: writes the record, logs a request to stop, reads stop files."""
        due, written = 0.0, self._counts
        while not self._ended.wait(_LOOK_S):
            self._look_for_stop_file()
            self._pass_on()
            if self._announce() or self._counts != written or time.monotonic() >= due:
                due, written = time.monotonic() + _BEAT_S, self._counts
                self._beat()

    def _pass_on(self) -> None:
        """Tell what is under way of a request to stop; what the disk refuses is tried at the next look."""
        if self._asked and (act := self._on_stop) is not None:
            with contextlib.suppress(OSError):
                act()
                self._on_stop = None

    def _announce(self) -> bool:
        """Log a request to stop, once; returns whether it was logged now."""
        if not self._asked or self._announced:
            return False
        self._announced = True
        log.warning("asked to stop (%s): %s", self._asked, _WHAT_STOPPING_MEANS)
        return True

    def _look_for_stop_file(self) -> None:
        try:
            how = (self._dir / STOP_FILE).read_text()
        except OSError:
            return
        self._asked = self._asked or "rft stop"
        if how == StopRequest.NOW and not self._now:
            self._now = True
            if self._handlers:  # a real signal, so that a wait in the main thread ends
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _present(self) -> RunRecord:
        why = f"asked by {self._asked}" if self._asked else ""
        phase, (done, total) = self._phase, self._counts
        if self._counted is not None and (steps := self._counted()) is not None:
            done, total = steps
            phase = f"{phase}, step {done} of {total}"
        return replace(
            self._record,
            state=self.state,
            why=why,
            beat_at=time.time(),
            phase=masked(phase),
            phase_at=self._phase_at,
            done=done,
            total=total,
            heard=dict(self._heard),
        )

    def _beat(self) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the heartbeat: there may be room again
            write_record(self._dir, self._present(), durable=False)


def _ended(record: RunRecord, err: BaseException | None) -> RunRecord:
    """The record of a run that ended with `err`, or well."""
    if err is None:
        return replace(record, state=RunState.FINISHED, why="", exit_code=0)
    code = err.code if isinstance(err, SystemExit) else getattr(err, "exit_code", 1)
    text = masked(str(err))[:_LONGEST_WHY]
    if isinstance(err, KeyboardInterrupt | Stopped):
        why = text or f"{record.why or 'interrupted'}, ended at once"
        return replace(record, state=RunState.STOPPED, why=why, exit_code=STOPPED_EXIT)
    if isinstance(err, SystemExit) and not code:
        return replace(record, state=RunState.FINISHED, why="", exit_code=0)
    named = f"{type(err).__name__}: {text}" if text else type(err).__name__
    return replace(record, state=RunState.FAILED, why=named, exit_code=code if isinstance(code, int) else 1)


def _traceback(err: BaseException, trace: TracebackType | None) -> logging.LogRecord:
    text = f"the run failed with {type(err).__name__}"
    return logging.LogRecord(__name__, logging.ERROR, "", 0, text, None, (type(err), err, trace))


class RunLog(logging.FileHandler):
    """The run's `log.txt`: every line of the process's logging; a full disk costs lines, not the run."""

    def __init__(self, path: Path) -> None:
        """Append to the lines of earlier starts."""
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self.setFormatter(PlainFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
        self._told = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Warn once, on the other handlers, that lines are missing."""
        if not self._told:
            self._told = True
            logging.getLogger(__name__).warning(
                "%s cannot be written to; lines are missing in it", self.baseFilename
            )
