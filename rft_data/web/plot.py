"""A chart as a file for a paper: SVG or PNG with axes and its own light colours, or its numbers as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from fastapi.responses import Response

from rft_data.core.lookup import need
from rft_data.web.words import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#0b68cb", "#c2410c", "#18794e", "#8e4ec6")
"""Colours of the series, in order: those of the page in its light colours."""
_STYLE = {
    "text.parse_math": False,  # a name with a dollar sign is a name
    "svg.fonttype": "path",  # looks the same where the font is not installed
    "svg.hashsalt": "rft-data",  # the same chart is the same file
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}
_INCHES, _DOTS = (5.5, 3.2), 300
_one_at_a_time = Lock()
"""matplotlib's settings and fonts are shared between threads."""


class Kind(StrEnum):
    """A kind of file that a chart is downloaded as; its value is the file's suffix."""

    SVG = "svg"
    """A drawing, which scales."""
    PNG = "png"
    """A picture of 300 dots per inch."""
    CSV = "csv"
    """The numbers."""


_TYPES = {Kind.SVG: "image/svg+xml", Kind.PNG: "image/png", Kind.CSV: "text/csv; charset=utf-8"}


class Plot(Protocol):
    """A chart that can be a file."""

    @property
    def title(self) -> str:
        """Its name, and that of the file."""
        ...

    def rows(self) -> list[list[object]]:
        """Its numbers, below a heading."""
        ...

    def draw(self, axes: Axes) -> None:
        """Put it on axes, which have nothing on them."""
        ...


@dataclass(frozen=True, slots=True)
class Curves:
    """Series of numbers by step."""

    title: str
    series: Mapping[str, Sequence[tuple[int, float]]]
    """The series by name, each in the order of its steps."""
    smooth: Mapping[str, Sequence[float]]
    """Moving averages of some of them, a value for each step."""
    log: bool = False

    def rows(self) -> list[list[object]]:
        """A heading and a row for each step; empty where a series has no value."""
        columns = [dict(pairs) for pairs in self.series.values()]
        steps = sorted({step for column in columns for step in column})
        names = ["value" if name == self.title else visible(name) for name in self.series]
        found: list[list[object]] = [["step", *names]]
        found += [[step, *(column.get(step, "") for column in columns)] for step in steps]
        return found

    def draw(self, axes: Axes) -> None:
        """Draw the curves, each raw one pale below its average."""
        for colour, (name, pairs) in zip(_COLOURS, self.series.items(), strict=False):
            steps = [step for step, _ in pairs]
            average = self.smooth.get(name)
            pale = 1.0 if average is None else 0.35
            axes.plot(steps, [value for _, value in pairs], color=colour, alpha=pale, label=visible(name))
            if average is not None:
                axes.plot(steps, average, color=colour)
        if self.log:
            axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel(visible(self.title))


@dataclass(frozen=True, slots=True)
class Bars:
    """Counts of values between the same edges."""

    title: str
    edges: Sequence[float]
    counts: Mapping[str, Sequence[int]]
    """Counts by name; one fewer than edges. The last bin has its upper edge too."""

    def rows(self) -> list[list[object]]:
        """A heading and a row for each bin."""
        names = ["count"] if len(self.counts) == 1 else [visible(name) for name in self.counts]
        ends = zip(self.edges[:-1], self.edges[1:], *self.counts.values(), strict=True)
        return [["low", "high", *names], *(list[object](row) for row in ends)]

    def draw(self, axes: Axes) -> None:
        """Draw the bins, the first filled and the others as outlines."""
        for place, (colour, (name, counts)) in enumerate(zip(_COLOURS, self.counts.items(), strict=False)):
            axes.stairs(counts, self.edges, color=colour, fill=place == 0, label=visible(name), linewidth=1.5)
        axes.set_xlabel(visible(self.title))
        axes.set_ylabel("rows")


def download(plot: Plot, kind: Kind) -> Response:
    """The file as an answer, which a browser stores. Raises: MissingExtraError without matplotlib."""
    content = _csv(plot) if kind is Kind.CSV else _drawn(plot, kind)
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in plot.title).strip("-") or "chart"
    headers = {"content-disposition": f'attachment; filename="{name}.{kind}"'}
    return Response(content, media_type=_TYPES[kind], headers=headers)


def _csv(plot: Plot) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(plot.rows())
    return out.getvalue().encode()


def _drawn(plot: Plot, kind: Kind) -> bytes:
    need("matplotlib", "web", "a chart as a file")
    import matplotlib as mpl  # here: it takes half a second and 40 MB, and few pages are drawn
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with _one_at_a_time, mpl.rc_context(_STYLE):
        figure = Figure(figsize=_INCHES, dpi=_DOTS, layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        plot.draw(axes)
        handles, labels = axes.get_legend_handles_labels()
        if len(handles) > 1:
            axes.legend(handles, labels, frameon=False)
        figure.savefig(out, format=kind.value, metadata={"Date": None} if kind is Kind.SVG else None)
    return out.getvalue()
