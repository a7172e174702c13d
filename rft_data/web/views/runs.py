"""Views of runs: all of them, several compared, one, its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Query
from fastapi.responses import HTMLResponse

from rft_data.web import runs
from rft_data.web.alarms import NUMBERS, alarms
from rft_data.web.comparison import compare
from rft_data.web.page import FirstStep, LastStep, Route, Smoothing, Text, View

Steps = tuple[int, int]
"""First and last step, both shown."""


class RunViews(View):
    """Views of one run."""

    def routes(self) -> Iterator[Route]:
        yield Route("/", self.index)
        yield Route("/compare", self.comparison)
        yield Route("/s/{key}", self.subject)
        yield Route("/s/{key}/metric", self.metric)

    def index(self) -> HTMLResponse:
        """All subjects."""
        return self._page.shown("index.html", lines=runs.lines(self._page.subjects))

    def comparison(self, run: Annotated[list[str], Query(max_length=20)]) -> HTMLResponse:
        """Two to four runs beside each other."""
        return self._page.shown("compare.html", found=compare(self._page.subjects, run))

    def subject(self, key: str, follow: bool = False) -> HTMLResponse:
        """A run, or a buffer alone. Args: follow: load it again every five seconds while it runs."""
        subject = self._page.subjects[key]
        line = runs.line(self._page.subjects, subject)
        if line.status is None:
            return self._page.shown("buffer.html", subject=subject, line=line)
        buffer, run_id = runs.opened(self._page.subjects, key), self._page.run_id(key)
        first = runs.first_names(runs.run_folder(self._page.subjects, key))
        names = list(dict.fromkeys((*first, *NUMBERS)))
        frame = None if buffer is None else runs.metrics(buffer, run_id, names)
        return self._page.shown(
            "run.html",
            subject=subject,
            status=line.status,
            has_buffer=buffer is not None,
            follow=follow,
            alarms=alarms(line.status, frame),
            charts=[] if frame is None else runs.first_charts(frame, first),
            names=runs.last_numbers(line.status),
            outcomes={} if buffer is None else runs.outcomes(buffer, run_id),
            run_id=run_id,
        )

    def metric(
        self,
        key: str,
        name: Text,
        smoothing: Smoothing = 0.0,
        log: bool = False,
        first: FirstStep = None,
        last: LastStep = None,
    ) -> HTMLResponse:
        """One of a run's numbers, large; a point leads to the rollouts of its step."""
        frame = runs.one_number(self._page.subjects, key, name)
        picture = runs.series(frame, name, smoothing=smoothing, log=log, first=first, last=last)
        steps = int(frame.index.min()), int(frame.index.max())
        return self._page.shown(
            "metric.html",
            subject=self._page.subjects[key],
            chart=picture,
            asked={"name": name, "smoothing": smoothing, "log": log, "first": first, "last": last},
            zoomable=steps,
            zooms=zooms(steps, first, last),
        )


def zooms(all_steps: Steps, first: int | None, last: int | None) -> Iterator[tuple[str, Steps]]:
    """Words and steps of each link that would show others than are shown now.

    Args: all_steps: that there are; first, last: what was asked for, None: all.
    """
    oldest, newest = all_steps
    low = oldest if first is None else max(first, oldest)
    high = newest if last is None else min(last, newest)
    if low > high:
        yield "all steps", all_steps
        return
    width = high - low
    if width >= 4:
        middle = low + width // 2
        yield "first half", (low, middle)
        yield "second half", (middle, high)
    if low > oldest:
        yield "earlier", (max(oldest, low - width - 1), low)
    if high < newest:
        yield "later", (high, min(newest, high + width + 1))
    if (low, high) != all_steps:
        yield "all steps", all_steps
