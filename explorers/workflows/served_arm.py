"""One arm of a served world: its clients come through the run's front, which names their trajectories."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from explorers.capture.listening import listening_at
from explorers.rewards.scoring import Rewards
from explorers.workflows.served import ServedWorkflow
from explorers.workflows.visits import Visits
from rft_data.core.arms import Arm
from rft_data.core.engine import Engine
from rft_data.core.rows import Experience, Task
from rft_data.core.words import ARM
from rft_data.core.workflow import RolloutContext


class ServedArm(ServedWorkflow):
    """The workflow `served` behind a front; its rows say of which arm they are."""

    def __init__(self, tokenizer: Any, rewards: Rewards, *, arm: str, socket: str, **args: Any) -> None:
        """Check the arguments.

        Args:
            arm: a word of `Arm`.
            socket: path of the Unix socket where the front finds it, in a folder of this user's alone.
            args: those of `ServedWorkflow`; the front listens at `host` and `port`.
        """
        super().__init__(tokenizer, rewards, **args)
        self._arm = Arm(arm)
        self._socket = Path(socket)
        self._visits.named_by_front = True

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """As `ServedWorkflow`; every row has its arm in `metadata`."""
        rows = await super().run(task, engine, ctx)
        return [replace(row, metadata={**row.metadata, ARM: str(self._arm)}) for row in rows]

    def _listening(self, visits: Visits) -> AbstractAsyncContextManager[str]:
        return listening_at(visits, self._socket)
