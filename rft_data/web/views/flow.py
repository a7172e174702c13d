"""The view of where a run's rollouts went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fastapi.responses import HTMLResponse

from rft_data.run.status import stored_recipe
from rft_data.web import runs
from rft_data.web.flow import MOST_ROWS, flows
from rft_data.web.page import Route, View


class FlowViews(View):
    """From sampled to trained."""

    def routes(self) -> Iterator[Route]:
        """Their addresses."""
        yield Route("/s/{key}/flow", self.flow)

    def flow(self, key: str) -> HTMLResponse:
        """Rollouts by what became of them, as a chain of numbers that add up."""
        subject, folder = self._page.subjects[key], runs.run_folder(self._page.subjects, key)
        buffer, run_id = self._page.subjects.buffer(key), self._page.run_id(key)
        found = flows(buffer, run_id, _operators(folder))
        return self._page.shown(
            "flow.html", subject=subject, flows=found, most=MOST_ROWS, run_id=run_id, where=buffer.location
        )


def _operators(folder: Path) -> list[str]:
    """Names of the operators of a run's stored recipe, in order."""
    stored = stored_recipe(folder).get("experience_ops") or []
    return [name for one in stored for name in (one if isinstance(one, dict) else ())]
