"""A rank of a trainer above 0 in a Ray actor of its own; `RankActors` starts it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rft_data.core.protocols import BufferClient
from rft_data.placement.hub.node_files import node_files
from trainers.ranks.actors import enter, node_address
from trainers.ranks.follower import serve


class RankRole:
    """One rank above 0, as a role."""

    def __init__(
        self, buffer: BufferClient | None, place: tuple[int, int, str, int], deadline_s: float
    ) -> None:
        """`place`: rank, number of ranks, and address and port where they meet."""
        self._buffer = buffer
        self._place = place
        self._deadline_s = deadline_s

    def serve(self) -> None:
        """Carry out rank 0's orders until it ends.

        Raises: what an order raised; RoleDiedError when rank 0 has ended; StalledError when the ranks do not
            meet.
        """
        from torch.distributed import TCPStore

        from trainers.ranks.ranks import Ranks

        rank, world, address, port = self._place
        where = f"process {os.getpid()} on {node_address()}"
        print(f"rank {rank} of the trainer is {where}", file=sys.stderr, flush=True)  # noqa: T201 - its log
        enter(rank, world, address, port)
        serve(Ranks.join(self._deadline_s, TCPStore(address, port, world)), self._own_arguments)

    def _own_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """With the files they name on this node; what this rank writes itself is thrown away elsewhere."""
        files = node_files(self._buffer)
        if files.shared:
            return arguments
        for name in ("model_path", "resume_from"):
            if arguments[name] is not None:
                files.fetch(Path(arguments[name]))
        return {**arguments, "output_dir": tempfile.mkdtemp(prefix="rft-rank-")}


def rank_role(
    buffer: BufferClient | None, *, rank: int, world: int, address: str, port: int, deadline_s: float
) -> RankRole:
    """The role's factory. It loads TRL, before rank 0 waits for this process."""
    from trainers.role import make_trainer  # noqa: F401

    return RankRole(buffer, (rank, world, address, port), deadline_s)
