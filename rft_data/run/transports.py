"""How published weights reach the explorers of a run: the recipe's way, or one that its placement suggests.

Some ways need a sender beside the run, which is named here and imported only when it is made.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import load
from rft_data.core.protocols import WeightSender
from rft_data.core.rows import WeightRef
from rft_data.recipe.running import PlacementSection
from rft_data.recipe.sections import EngineSection

log = logging.getLogger(__name__)

AUTO = "auto"
_RAY_SENDER = "explorers.transports.ray_store:RaySender"


@dataclass(frozen=True, slots=True)
class Way:
    """How the weights travel."""

    use: str
    """One of `explorers.transports.TRANSPORTS`."""
    why: str
    """Who chose it, and why."""
    arguments: Mapping[str, object]
    """Of the engines' transport."""

    def as_json(self) -> dict[str, str]:
        """For the run's summary."""
        return {"use": self.use, "why": self.why}

    def engine_argument(self) -> dict[str, object]:
        """The `transport` of an engine's plan."""
        return {"use": self.use, **self.arguments}


def chosen_way(engine: EngineSection, place: PlacementSection, run_id: str, attempt: int) -> Way:
    """The way that a recipe names, or with `auto` the one that fits its placement.

    Raises: RecipeError for a way that its engine or its placement cannot go.
    """
    use: str = engine.transport.use
    why = "the recipe names it"
    if use == AUTO:
        use, why = _suggested(engine, place)
    if use == "ray" and place.use != "ray":
        raise RecipeError(
            f"explorer.engine.transport 'ray' needs placement.use 'ray', found '{place.use}'; use 'shm' or "
            "'directory' on one machine, or 'auto'."
        )
    return Way(use, why, {"actor": f"weights-{run_id}-{attempt}"} if use == "ray" else {})


def _suggested(engine: EngineSection, place: PlacementSection) -> tuple[str, str]:
    """What fits a placement, and why."""
    if place.use == "inline":
        return "directory", "explorers and trainer are one process"
    if place.use == "ray":
        return "ray", "explorers may be on nodes that do not see the run's folder"
    return "shm", "explorers are processes of one machine"


def make_sender(way: Way) -> WeightSender | None:
    """The sender that a way needs; None if it needs none."""
    if way.use != "ray":
        return None
    return RaySending(str(way.arguments["actor"]))


class RaySending:
    """Puts each version into Ray's object store, once."""

    def __init__(self, actor: str) -> None:
        """`actor`: the name under which explorers find it."""
        self._sender = cast("Any", load(_RAY_SENDER, "weight sender"))(actor)
        self._last: WeightRef | None = None

    def offer(self, ref: WeightRef, explorers: Sequence[str]) -> None:
        """Have these explorers find the version; they fetch it when they load it."""
        if ref != self._last:
            self._sender.offer(ref)
            self._last = ref

    def close(self) -> None:
        """End the actor."""
        self._sender.close()
