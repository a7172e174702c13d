"""The view of where a run's rollouts went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fastapi.responses import HTMLResponse, Response

from rft_data.core.errors import UnknownComponentError
from rft_data.core.lookup import suggest
from rft_data.run.status import stored_recipe
from rft_data.web import runs
from rft_data.web.flow import MOST_ROWS, Flow, flows
from rft_data.web.flow_plot import FlowPlot
from rft_data.web.page import Route, Text, View
from rft_data.web.plot import Kind, download


class FlowViews(View):
    """From sampled to trained."""

    def routes(self) -> Iterator[Route]:
        yield Route("/s/{key}/flow", self.flow)
        yield Route("/s/{key}/flow.{kind}", self.picture)

    def flow(self, key: str) -> HTMLResponse:
        """Rollouts by what became of them, as a chain of numbers that add up."""
        buffer = self._page.subjects.buffer(key)
        return self._page.shown(
            "flow.html",
            subject=self._page.subjects[key],
            flows=self._flows(key),
            most=MOST_ROWS,
            run_id=self._page.run_id(key),
            where=buffer.location,
        )

    def picture(self, key: str, kind: Kind, consumer: Text) -> Response:
        """The chain of one consumer."""
        found = {one.consumer: one for one in self._flows(key) or ()}
        if consumer not in found:
            raise UnknownComponentError(
                f"no flow of consumer '{consumer}' is shown here;{suggest(consumer, found)}"
            )
        return download(FlowPlot(found[consumer]), kind)

    def _flows(self, key: str) -> list[Flow] | None:
        folder = runs.run_folder(self._page.subjects, key)
        return flows(self._page.subjects.buffer(key), self._page.run_id(key), _operators(folder))


def _operators(folder: Path) -> list[str]:
    """Names of the operators of a run's stored recipe, in order."""
    stored = stored_recipe(folder).get("experience_ops") or []
    return [name for one in stored for name in (one if isinstance(one, dict) else ())]
