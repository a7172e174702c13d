"""Views of lineage: what a step or a checkpoint was made of, and what came of a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Path
from fastapi.responses import HTMLResponse

from rft_data.core.errors import RecipeError
from rft_data.core.filters import Compare
from rft_data.reading.descent import checkpoint_steps, checkpoints, descent, leases_of_step
from rft_data.reading.lineage import lineage, run_versions
from rft_data.web.listing import numbered_rows
from rft_data.web.page import Route, Text, View

MOST_SHOWN = 200
"""Rows, steps or tasks of one view."""
Step = Annotated[int, Path(ge=0, lt=2**62)]


class LineageViews(View):
    """From what to what."""

    def routes(self) -> Iterator[Route]:
        yield Route("/s/{key}/steps/{step}", self.step)
        yield Route("/s/{key}/checkpoints/{step}", self.checkpoint)
        yield Route("/s/{key}/rows/{seq}/descent", self.descent)

    def step(self, key: str, step: Step, consumer: Text = "") -> HTMLResponse:
        """The experiences that an optimizer step was trained on, by one of its consumers."""
        buffer, run_id = self._page.subjects.buffer(key), self._page.run_id(key)
        leases = leases_of_step(buffer, run_id, step)
        lease = next((one for one in leases if one.consumer == consumer), None)
        if lease is None and consumer:
            known = ", ".join(one.consumer for one in leases)
            raise RecipeError(f"step {step} has no consumer '{consumer}'; it has {known}.")
        lease = lease or leases[0]
        named = Compare("lease_id", "eq", f"{run_id}/{lease.consumer}/{step}")
        held = buffer.read("consumed", ["checkpoint_step"], named).column(0).to_pylist()
        return self._page.shown(
            "step.html",
            subject=self._page.subjects[key],
            step=step,
            leases=leases,
            lease=lease,
            checkpoint=held[-1] if held else None,
            rows=numbered_rows(buffer, lease.seqs[:MOST_SHOWN]),
        )

    def checkpoint(self, key: str, step: Step) -> HTMLResponse:
        """The steps that a checkpoint was made of, and the weights that hold it."""
        buffer, run_id = self._page.subjects.buffer(key), self._page.run_id(key)
        return self._page.shown(
            "checkpoint.html",
            subject=self._page.subjects[key],
            checkpoint=step,
            others=checkpoints(buffer, run_id)[-MOST_SHOWN:],
            steps=checkpoint_steps(buffer, run_id, step),
            weights=[one for one in run_versions(buffer, run_id) if one.step >= step],
            shown=MOST_SHOWN,
            run_id=run_id,
        )

    def descent(self, key: str, seq: int) -> HTMLResponse:
        """All that was trained on a row, or made from it."""
        buffer, subject = self._page.subjects.buffer(key), self._page.subjects[key]
        line = lineage(buffer, seq)
        return self._page.shown(
            "descent.html",
            subject=subject,
            line=line,
            found=descent(buffer, line),
            own_run=self._page.own_run(key),
            shown=MOST_SHOWN,
        )
