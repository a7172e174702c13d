"""Starts the other processes of a data-parallel trainer, or meets those that torchrun started.

What they run is in `trainers.ranks.follower`; how orders reach them, in `trainers.ranks.ranks`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from rft_data.core.children import Child, how_it_ended
from rft_data.core.errors import RftError, RoleDiedError, StalledError, TrainingError

if TYPE_CHECKING:
    from trainers.ranks.ranks import Ranks

SET_ASIDE = "RFT_TRAINER_RANK"
"""Environment variable of a run under torchrun: what torchrun set for rank 0, for its trainer only."""
TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that tell torch.distributed which rank a process is."""
FOLLOWER = "trainers.ranks.follower"
"""Module of another rank on this machine: it sends a line when it is ready, and ends with its socket."""
_END_S = 10.0


class OtherRanks(Protocol):
    """The other ranks of a trainer, as rank 0 uses them."""

    @property
    def ranks(self) -> Ranks:
        """Through which they are given orders."""
        ...

    def close(self, *, now: bool = False) -> None:
        """End them; `now`: without asking. Idempotent."""
        ...


class RankProcesses:
    """The other ranks of a trainer as children of this process, which becomes rank 0."""

    def __init__(self, count: int, deadline_s: float) -> None:
        """Start `count` - 1 processes and join them.

        Sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ... of this process until `close`, since accelerate
        reads the number of processes from them.

        Args: deadline_s: longest wait for them to start, for each other in a collective, and for an answer.
        Raises: TrainingError where torch.distributed is in use already (an engine in this process);
            RoleDiedError for one that ends before it is ready; StalledError past the deadline.
        """
        from torch.distributed import TCPStore, is_initialized

        from trainers.ranks.ranks import Ranks

        if is_initialized():
            raise TrainingError(
                "this process already belongs to a torch.distributed group (an engine runs in it), so it "
                "cannot be rank 0 of a trainer; use placement 'local' or 'ray', where each role has its own."
            )
        store = TCPStore("127.0.0.1", 0, count, is_master=True, wait_for_workers=False)
        self._before = {name: os.environ.get(name) for name in TORCH_VARIABLES}
        os.environ.update(_variables(0, count, store.port))
        self._others = [
            Child(
                FOLLOWER,
                deadline_s,
                environment={**os.environ, **_variables(rank, count, store.port)},
                own_session=False,
            )
            for rank in range(1, count)
        ]
        try:
            end = time.monotonic() + deadline_s
            for rank, other in enumerate(self._others, 1):
                _wait_until_ready(rank, other, end)
            self.ranks: Ranks = Ranks.join(deadline_s, store)
        except BaseException:
            self.close(now=True)
            raise

    def close(self, *, now: bool = False) -> None:
        """End them; `now`: without asking. Idempotent."""
        others, self._others = self._others, []
        ask = not now and self.ranks.sound
        if others and ask:
            ask_to_end(self.ranks)
        for other in others:
            other.close(_END_S if ask else 0.0)
        if others:
            leave_group(self._before)


def _wait_until_ready(rank: int, child: Child, end: float) -> None:
    what = f"rank {rank} of the trainer (pid {child.pid})"
    try:
        child.line(end - time.monotonic())
    except TimeoutError as err:
        raise StalledError(f"{what} was not ready within the deadline; look at its log (stderr).") from err
    except EOFError as err:
        how = how_it_ended(child.end(_END_S))
        raise RoleDiedError(f"{what} ended with {how} before it was ready; see its log (stderr).") from err


def _variables(rank: int, world: int, port: int) -> dict[str, str]:
    values = (rank, world, rank, world, "127.0.0.1", port)
    return dict(zip(TORCH_VARIABLES, map(str, values), strict=True))


def leave_group(before: Mapping[str, str | None]) -> None:
    """Make this process a process without other ranks again."""
    from accelerate.state import AcceleratorState
    from torch import distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class RanksFromOutside:
    """The other ranks of a trainer as torchrun started them; this process is rank 0's trainer."""

    def __init__(self, deadline_s: float) -> None:
        """Join them.

        Raises: StalledError when they do not join by the deadline.
        """
        os.environ.update(json.loads(os.environ.pop(SET_ASIDE)))
        from trainers.ranks.ranks import Ranks

        self.ranks: Ranks = Ranks.join(deadline_s)
        self._open = True

    def close(self, *, now: bool = False) -> None:
        """Ask them to end; torchrun itself ends them when this process fails. Idempotent."""
        if self._open and not now and self.ranks.sound:
            ask_to_end(self.ranks)
        self._open = False


def ask_to_end(ranks: Ranks) -> None:
    """Tell the other ranks to end."""
    with contextlib.suppress(RftError), ranks.together({"do": "end"}):
        pass
