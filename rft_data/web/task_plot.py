"""The map of a run's tasks as a chart for a paper: one line for each task, one column for some steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rft_data.web.task_map import COLUMNS, TaskMap
from rft_data.web.words import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#dbe9f8", "#0b68cb")
"""Colours of a task that no rollout solved, and of one that all did; where it was not played there is
nothing."""


@dataclass(frozen=True, slots=True)
class TaskPlot:
    """Tasks by the time they were played, and the share of rollouts that solved them."""

    map: TaskMap

    @property
    def title(self) -> str:
        """The subject of the plot."""
        return "tasks"

    def rows(self) -> list[list[object]]:
        """A heading, and for each task its posterior and its share of solved rollouts by stretch of steps."""
        width, count = self.map.width, self._columns()
        stretches = [f"steps {place * width} to {(place + 1) * width - 1}" for place in range(count)]
        found: list[list[object]] = [
            ["taskset", "task", "pass rate", "uncertainty", "rollouts", *stretches],
        ]
        for line in self.map.lines:
            shares = {cell.column: cell.share for cell in line.cells}
            told = [shares.get(place, "") for place in range(count)]
            of_task = [line.pass_rate, line.uncertainty, line.rollouts]
            found.append([visible(line.taskset), visible(line.task_id), *of_task, *told])
        return found

    def draw(self, axes: Axes) -> None:
        """Draw a cell for each stretch in which a task was played: darker where more solved it."""
        from matplotlib.colors import LinearSegmentedColormap

        count = max(self._columns(), 1)
        shares = np.full((max(len(self.map.lines), 1), count), np.nan)
        for place, line in enumerate(self.map.lines):
            for cell in line.cells:
                shares[place, cell.column] = cell.share
        colours = LinearSegmentedColormap.from_list("solved", _COLOURS)
        steps = np.arange(count + 1) * self.map.width
        axes.pcolormesh(steps, np.arange(len(shares) + 1), shares, cmap=colours, vmin=0, vmax=1)
        axes.invert_yaxis()
        axes.set_xlabel("step")
        axes.set_ylabel("tasks, hardest first")
        axes.set_yticks([])

    def _columns(self) -> int:
        """Up to the last stretch in which any task was played."""
        last = max((cell.column for line in self.map.lines for cell in line.cells), default=-1)
        return min(last + 1, COLUMNS)
