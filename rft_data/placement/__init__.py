"""Where roles run: in this process, in child processes, or as Ray actors; the roles do not know which.

It names no explorer, trainer or sampler: a role is an import path and JSON values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rft_data.core.lookup import built_in
from rft_data.core.protocols import BufferClient, Placement
from rft_data.placement.calls import Patience
from rft_data.placement.inline import InlinePlacement
from rft_data.placement.local import LocalPlacement
from rft_data.placement.ray import RayPlacement


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a placement gives its roles."""

    run_id: str
    buffer: BufferClient | None = None
    """The live buffer, for roles in this process."""
    hub: tuple[str, str] | None = None
    """(address, token) of the hub that serves it, for roles in others."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for other processes; what is set there stays as it is."""
    patience: Patience = field(default_factory=Patience)


PLACEMENTS: Mapping[str, Callable[[Surroundings], Placement]] = {
    "inline": lambda given: InlinePlacement(given.buffer),
    "local": lambda given: LocalPlacement(given.hub, given.environment, given.patience),
    "ray": lambda given: RayPlacement(given.run_id, given.hub, given.environment, given.patience),
}


def make_placement(use: str, surroundings: Surroundings) -> Placement:
    """The placement called `use`.

    Raises: UnknownComponentError.
    """
    return built_in(use, PLACEMENTS, "placement")(surroundings)
