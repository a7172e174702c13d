"""Charts as files: SVG, PNG, and their numbers as CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Query
from fastapi.responses import Response

from rft_data.core.errors import RecipeError, UnknownComponentError
from rft_data.core.lookup import suggest
from rft_data.web import runs
from rft_data.web.chart import averages, finite
from rft_data.web.comparison import compared_numbers
from rft_data.web.page import FirstStep, LastStep, Route, Smoothing, Text, View
from rft_data.web.plot import Bars, Curves, Kind, download
from rft_data.web.reward_spread import histogram
from rft_data.web.table_query import Asked


class PictureViews(View):
    """The page's charts as files."""

    def routes(self) -> Iterator[Route]:
        yield Route("/compare.{kind}", self.comparison)
        yield Route("/s/{key}/metric.{kind}", self.metric)
        yield Route("/s/{key}/rewards.{kind}", self.rewards)

    def metric(
        self,
        key: str,
        kind: Kind,
        name: Text,
        smoothing: Smoothing = 0.0,
        log: bool = False,
        first: FirstStep = None,
        last: LastStep = None,
    ) -> Response:
        """One of a run's numbers, of every step."""
        frame = runs.one_number(self._page.subjects, key, name)
        pairs = finite(runs.pairs(frame, name, first, last), log=log)
        smooth = {name: averages([value for _, value in pairs], smoothing)} if smoothing else {}
        return download(Curves(name, {name: pairs}, smooth, log), kind)

    def comparison(self, kind: Kind, run: Annotated[list[str], Query(max_length=20)], name: Text) -> Response:
        """A number of two to four runs."""
        series = compared_numbers(self._page.subjects, run)
        if name not in series:
            raise UnknownComponentError(f"these runs are not compared by '{name}';{suggest(name, series)}")
        drawn = {key: finite(pairs) for key, pairs in series[name].items()}
        return download(Curves(name, drawn, {}), kind)

    def rewards(self, key: str, kind: Kind, asked: Annotated[Asked, Query()]) -> Response:
        """How the rewards of the experiences that a filter lets through are spread."""
        bins = histogram(self._page.subjects.buffer(key), asked.choice, asked.where).bins
        if not bins:
            raise RecipeError("no experience that this filter lets through has a reward.")
        edges = [bins[0].low, *(one.high for one in bins)]
        return download(Bars("reward", edges, {"rows": [one.count for one in bins]}), kind)
