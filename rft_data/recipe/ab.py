"""An A/B test of a run's own weights on the users that it serves, and which recipes can have one."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rft_data.recipe.running import PlacementSection, Sync
from rft_data.recipe.section import Section
from rft_data.recipe.sections import ExplorerSection, OnlineEvaluation
from rft_data.recipe.tasksets import Taskset

SERVED = "served"
"""Name of the workflow and of the source of tasks whose trajectories are users'."""


class AbTest(Section):
    """A share of the users that is served by older weights; see docs/served.md."""

    behind: int = Field(ge=1)
    """Publications of weights between those that the pinned explorer serves and the newest."""
    share: float = Field(gt=0, lt=1)
    """Share of the trajectories that the pinned explorer serves, between 0 and 1."""

    def steps_behind(self, sync: Sync) -> int:
        """`behind` in optimizer steps."""
        return self.behind * sync.every


def check_ab(
    ab: AbTest,
    tasks: Sequence[Taskset],
    explorer: ExplorerSection,
    placement: PlacementSection,
    sync: Sync,
    evaluation: OnlineEvaluation | None,
) -> None:
    """Refuse an A/B test that the other sections of a recipe cannot have.

    Raises: ValueError.
    """
    _check_served(tasks, explorer)
    if evaluation is not None:
        raise ValueError(
            "'evaluation' measures the newest weights with all explorers, and 'ab' pins one of them to older "
            "weights; remove one of the two (metrics 'ab/ARM/reward' compare the arms)"
        )
    if placement.use != "local":
        raise ValueError(
            f"'ab' has one front before explorers that are processes of this machine, and 'placement.use' is "
            f"'{placement.use}'; give placement: {{use: local, explorers: {{count: 2}}}}"
        )
    count = placement.explorers.count
    if not isinstance(count, int) or count < 2:
        found = count if isinstance(count, int) else f"from {count.min} to {count.max}"
        raise ValueError(
            f"'ab' pins one explorer to older weights while others serve the newest, and "
            f"'placement.explorers.count' is {found}; give a fixed number, 2 or more"
        )
    oldest = ab.steps_behind(sync) + sync.every - 1
    if oldest > sync.max_staleness:
        raise ValueError(
            f"'ab.behind' is {ab.behind}, so its rows are up to {oldest} steps old before the next "
            f"publication ('sync.every' {sync.every}), and 'sync.max_staleness' {sync.max_staleness} lets "
            f"none of them be trained; give max_staleness of {oldest} or more, or a smaller 'behind'"
        )


def _check_served(tasks: Sequence[Taskset], explorer: ExplorerSection) -> None:
    if explorer.workflow.use != SERVED:
        raise ValueError(
            f"'ab' is a share of the users that a run serves, and 'explorer.workflow.use' is "
            f"'{explorer.workflow.use}'; give explorer: {{workflow: {{use: served, ...}}}}, or remove 'ab'"
        )
    for taskset in tasks:
        played_by = taskset.workflow or SERVED
        if taskset.source.use != SERVED or played_by != SERVED:
            raise ValueError(
                f"'ab' is a share of the users that a run serves, and taskset '{taskset.name}' has the "
                f"source '{taskset.source.use}' and the workflow '{played_by}'; give only tasksets of source "
                "'served', without a workflow of their own"
            )
