"""Starts roles in this process, in child processes, or as Ray actors; a role is the same code in each.

A role is an import path and JSON values: this room imports no explorer, trainer or sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rft_data.core.lookup import lookup
from rft_data.core.protocols import BufferClient
from rft_data.core.roles import Placement
from rft_data.placement.calls import Patience
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.inline import InlinePlacement
from rft_data.placement.local import LocalPlacement
from rft_data.placement.ray import RayPlacement


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Settings that a placement gives to all its roles."""

    run_id: str
    buffer: BufferClient | None = None
    """The open buffer, for roles in this process."""
    hub: HubAccess | None = None
    """The hub, with its secret, that serves the buffer, for roles in other processes; `RoleSetup.of`
    gives each a token of its own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for other processes; a variable that is set there already keeps its value."""
    patience: Patience = field(default_factory=Patience)
    address: str | None = None
    """A running cluster's; None: the environment names one, or one of this machine's own is started."""


PLACEMENTS: Mapping[str, Callable[[Surroundings], Placement]] = {
    "inline": lambda given: InlinePlacement(given.buffer),
    "local": lambda given: LocalPlacement(given.hub, given.environment, given.patience),
    "ray": lambda given: RayPlacement(
        given.run_id, given.hub, given.environment, given.patience, given.address
    ),
}


def make_placement(use: str, surroundings: Surroundings) -> Placement:
    """Make the placement called `use`: a key of PLACEMENTS, or the import path of a callable like them.

    Raises: UnknownComponentError if there is none.
    """
    placement: Placement = lookup(use, PLACEMENTS, "placement")(surroundings)
    return placement
