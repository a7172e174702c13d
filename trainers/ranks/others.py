"""The other ranks of a trainer, however they are started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainers.ranks.actors import RankActors
from trainers.ranks.launch import SET_ASIDE, OtherRanks, RankProcesses, RanksFromOutside


def other_ranks(
    processes: int,
    deadline_s: float,
    actors: Mapping[str, object] | None = None,
    hub: tuple[str, str] | None = None,
) -> OtherRanks | None:
    """The other ranks of a trainer: torchrun's, Ray actors, or children; None if there are none.

    Args: actors, hub: see `RankActors`; None: they are no actors.
    Raises: what RanksFromOutside, RankActors or RankProcesses raises.
    """
    if SET_ASIDE in os.environ:
        return RanksFromOutside(deadline_s)
    if actors is not None:
        return RankActors(processes, deadline_s, actors, hub)
    return RankProcesses(processes, deadline_s) if processes > 1 else None
