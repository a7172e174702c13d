"""The trainer as a role: the methods that a run's conductor calls, in whichever process the trainer runs.

It reads the rows of a lease from the buffer itself; they never go through the conductor. The conductor
decides what to train on and when to publish.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rft_data.core.errors import TrainingError
from rft_data.core.failpoints import failpoint
from rft_data.core.files import flush, write_manifest
from rft_data.core.groups import Lease
from rft_data.core.protocols import BufferClient
from rft_data.core.rows import FileFacts, StepReport
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.hub.node_files import NodeFiles, SharedFiles, node_files
from trainers.models.disk import writing
from trainers.policy.expert_rows import with_ids
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.plan import GrpoPlan
from trainers.ranks.actors import RankActors
from trainers.ranks.launch import SET_ASIDE, OtherRanks, RankProcesses, RanksFromOutside
from trainers.ranks.ranks import ALONE, Ranks


class TrainerRole:
    """A step-wise trainer that fetches its own rows."""

    def __init__(
        self,
        buffer: BufferClient,
        trainer: GrpoTrainer,
        pipeline_hash: str,
        others: OtherRanks | None = None,
        files: NodeFiles | None = None,
    ) -> None:
        """Join a buffer and a trainer.

        Args:
            pipeline_hash: names the operator list whose advantages are trained on.
            others: the trainer's other ranks, which end with it.
            files: hands in what it writes, where it does not see the run's folder.
        """
        self._files = files or SharedFiles()
        self._others = others
        self._buffer = buffer
        self._trainer = trainer
        self._pipeline_hash = pipeline_hash

    def step(self, lease: Lease, checkpoint: bool) -> StepReport:
        """Read the lease's rows and take one optimizer step; with `checkpoint`, write its state too.

        Returns: the report of `GrpoTrainer.train_on`, the seconds `load_s` and `step_s`, and the checkpoint's
            files.
        Raises: TrainingError when the lease is not for the next step; what reading and training raise.
        """
        failpoint("trainer.step")
        done = self._trainer.steps_done
        if lease.step != done:
            raise TrainingError(
                f"the lease is of step {lease.step}, but this trainer has taken {done} steps; "
                "a lease is trained once: resume the run."
            )
        started = time.perf_counter()
        batch = with_ids(
            self._buffer.leased(lease, self._pipeline_hash), self._buffer, self._trainer.tokenizer
        )
        if self._trainer.images is not None:
            batch = self._trainer.images.loaded(batch, self._buffer)
        loaded = time.perf_counter()
        report = self._trainer.train_on(batch, checkpoint=checkpoint)
        seconds = {"load_s": loaded - started, "step_s": time.perf_counter() - loaded}
        files = self._flushed() if checkpoint else {}
        return replace(report, metrics={**report.metrics, **seconds}, files=files)

    def save_weights(self, directory: str, header: Mapping[str, object]) -> str:
        """Write weights, probe and, last, a manifest with `header` into an empty folder of the run.

        Returns: the manifest's digest.
        Raises: what `GrpoTrainer.save_weights` raises.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        facts = self._trainer.save_weights(folder)
        with writing("the manifest", folder):
            digest = write_manifest(folder, {**header, **facts})
        self._files.send(folder)
        return digest

    def checkpoint(self) -> dict[str, FileFacts]:
        """Write the checkpoint of `steps_done` now, unless it is there already; returns its files."""
        self._trainer.checkpoint()
        return self._flushed()

    def _flushed(self) -> dict[str, FileFacts]:
        folder = self._trainer.checkpoint_dir(self._trainer.steps_done)
        with writing("the checkpoint", folder):
            files = flush(folder)
        self._files.send(folder)
        return files

    def sleep(self) -> None:
        """Leave the device to an engine until `wake`; idempotent.

        Raises: what `GrpoTrainer.sleep` raises.
        """
        self._trainer.sleep()

    def wake(self) -> None:
        """Take the device back, as it was; idempotent. Raises: what `GrpoTrainer.wake` raises."""
        self._trainer.wake()

    def steps_done(self) -> int:
        """Optimizer steps taken so far, those before a resume included."""
        return self._trainer.steps_done

    def checkpoint_dir(self, step: int) -> str:
        """Folder of the checkpoint of `step`, which need not exist."""
        return str(self._trainer.checkpoint_dir(step))

    def close(self) -> None:
        """End training, and the other ranks; idempotent."""
        try:
            self._trainer.close()
        finally:
            if self._others is not None:
                self._others.close()


def grpo_role(buffer: BufferClient, *, plan: dict[str, object], pipeline_hash: str) -> TrainerRole:
    """Policy gradients as a role.

    This process is rank 0 of the trainer. The others are its children, Ray actors, or processes of torchrun.

    Args: plan: a GrpoPlan as JSON (`GrpoPlan.from_json`).
    Raises: what GrpoTrainer raises, in any rank; RoleDiedError, StalledError when a rank does not start.
    """
    from rft_data.placement.hub.client import HubClient  # it imports LanceDB

    wanted = GrpoPlan.from_json(plan)
    limits, files = wanted.limits, node_files(buffer)
    for folder in filter(None, (wanted.model_path, wanted.resume_from)):
        files.fetch(folder.absolute())
    link = buffer.connection if isinstance(buffer, HubClient) else None
    hub = None if link is None else HubAccess(link.address, link.token)
    others = other_ranks(limits.processes, limits.deadline_s, limits.actors, hub)
    try:
        trainer = lead_trainer(plan, ALONE if others is None else others.ranks)
    except BaseException:
        if others is not None:
            others.close(now=True)
        raise
    return TrainerRole(buffer, trainer, pipeline_hash, others, files)


def other_ranks(
    processes: int,
    deadline_s: float,
    actors: Mapping[str, object] | None = None,
    hub: HubAccess | None = None,
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


def lead_trainer(arguments: Mapping[str, object], ranks: Ranks) -> GrpoTrainer:
    """Rank 0's trainer, made while the other ranks make theirs from the same arguments.

    Raises: what making a trainer raises, in any rank.
    """
    with ranks.together({"do": "make", "arguments": dict(arguments)}):
        return make_trainer(arguments, ranks)


def make_trainer(arguments: Mapping[str, object], ranks: Ranks) -> GrpoTrainer:
    """A rank's trainer; `arguments` are a GrpoPlan as JSON (`GrpoPlan.from_json`).

    Raises: what GrpoTrainer raises.
    """
    return GrpoTrainer(GrpoPlan.from_json(arguments), ranks)
