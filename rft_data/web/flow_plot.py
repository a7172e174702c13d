"""The flow of a run as a chart for a paper: a bar for each stage from sampled to trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rft_data.web.flow import Flow
from rft_data.web.words import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEFT, _LOST, _WAITING = "#0b68cb", "#c2410c", "#9a9a9a"


@dataclass(frozen=True, slots=True)
class FlowPlot:
    """One consumer's account."""

    flow: Flow

    @property
    def title(self) -> str:
        """The title of the chart, with the consumer's name."""
        return f"flow {self.flow.consumer}"

    def rows(self) -> list[list[object]]:
        """A heading, and for each stage the rows that went no further, and those that went on."""
        stages = [[visible(one.what), one.gone, one.left] for one in self.flow.stages]
        return [
            ["rows", "gone", "left"],
            ["sampled", "", self.flow.sampled],
            *stages,
            ["trained", "", self.flow.trained],
        ]

    def draw(self, axes: Axes) -> None:
        """Draw the rows that went on from each stage, and beside them those that did not."""
        flow = self.flow
        names = ["sampled", *(visible(one.what) for one in flow.stages), "trained"]
        left = [flow.sampled, *(one.left for one in flow.stages), flow.trained]
        gone = [0, *(one.gone for one in flow.stages), 0]
        colours = [_LEFT, *(_LOST if one.lost else _WAITING for one in flow.stages), _LEFT]
        places = range(len(names))
        axes.barh(places, left, color=_LEFT)
        axes.barh(places, gone, left=left, color=colours)
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.set_xlabel("rows")
