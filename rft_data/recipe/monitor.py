"""The section of a recipe about trackers and the Prometheus endpoint."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from rft_data.recipe.names import TRACKERS, known_name
from rft_data.recipe.section import Section


def _known_tracker(name: str) -> str:
    return known_name("tracker", name, TRACKERS, own=False)


class Monitor(Section):
    """Trackers that get the run's numbers beside the buffer's `metrics` table."""

    trackers: list[Annotated[str, AfterValidator(_known_tracker)]] = Field(
        default_factory=lambda: ["tensorboard"]
    )
    """`tensorboard`, or one of transformers' `report_to` names; see [monitoring.md](monitoring.md)."""
    prometheus_port: int = Field(default=0, ge=0, le=65535)
    """Port on loopback of the endpoint `/metrics`; 0: none."""

    def check_unserved(self, mode: str) -> None:
        """Raises: ValueError where an endpoint is asked for and the mode has no numbers for one."""
        if self.prometheus_port:
            raise ValueError(
                "'monitor.prometheus_port' serves the numbers of a run's steps or groups while it goes on; a "
                f"run of mode '{mode}' has none: leave it out"
            )


UNWATCHED = Monitor(trackers=[])
"""No tracker and no endpoint: the default where nothing is trained."""
