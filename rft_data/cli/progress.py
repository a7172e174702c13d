"""How far a run is, on stderr while a command waits for it: a bar on a terminal, else a line now and then.

It reads what the run writes of itself each second, so it works wherever the run's parts are.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rft_data.cli.status_text import duration
from rft_data.core.logs import say_line
from rft_data.run.record import RunRecord, read_record

_LOOK_S = 1.0
_LINE_S = 10.0
"""Seconds between two lines where there is no terminal."""
_RECENT = 20
"""Looks that the pace is taken over, at which the count had grown."""


class Pace:
    """How fast a count grows."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        self._total = 0

    def saw(self, now: float, done: int, total: int) -> None:
        """Note the count at a time in seconds; another total, or a smaller count, begins anew."""
        if total != self._total or (self._seen and done < self._seen[-1][1]):
            self._seen.clear()
            self._total = total
        if not self._seen or done > self._seen[-1][1]:
            self._seen.append((now, done))

    @property
    def each_s(self) -> float | None:
        """Seconds for one more, on average; None before there were two counts."""
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (ended - began) / (last - first)


def progress_text(record: RunRecord, pace: Pace, now: float) -> str:
    """One line: what the run is doing, and how fast or for how long. `now`: Unix seconds."""
    if record.done is None or record.total is None:
        return f"{record.phase}, for {duration(max(0.0, now - record.phase_at))}"
    if pace.each_s is None:
        return record.phase
    left = duration(pace.each_s * max(0, record.total - record.done))
    return f"{record.phase}, {pace.each_s:.3g} s each, {left} left"


@contextmanager
def following(run_dir: Path, *, quiet: bool) -> Iterator[None]:
    """Show the progress of the run in this folder during a block; `quiet`: show nothing."""
    if quiet:
        yield
        return
    ended, began = threading.Event(), time.time()
    show = _bar if sys.stderr.isatty() else _lines
    thread = threading.Thread(target=show, args=(run_dir, began, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _records(run_dir: Path, began: float, ended: threading.Event) -> Iterator[RunRecord]:
    """Progress of this start of the run, read each second until the end."""
    while not ended.wait(_LOOK_S):
        record = read_record(run_dir)
        if record is not None and record.phase and record.started_at >= began - _LOOK_S:
            yield record


def _lines(run_dir: Path, began: float, ended: threading.Event) -> None:
    pace, due = Pace(), time.monotonic() + _LINE_S
    for record in _records(run_dir, began, ended):
        if record.done is not None and record.total is not None:
            pace.saw(record.beat_at, record.done, record.total)
        if time.monotonic() >= due:
            due = time.monotonic() + _LINE_S
            say_line(progress_text(record, pace, time.time()), time.strftime("%H:%M:%S "))


def _bar(run_dir: Path, began: float, ended: threading.Event) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    pace = Pace()
    columns = (BarColumn(bar_width=30), TextColumn("{task.description}", markup=False))
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("starting", total=None)
        for record in _records(run_dir, began, ended):
            if record.done is not None and record.total is not None:
                pace.saw(record.beat_at, record.done, record.total)
            text = progress_text(record, pace, time.time())
            bar.update(task, description=text, total=record.total, completed=record.done or 0)
