"""The loop with roles in processes of their own: overlap, deaths, books."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.core.groups import Lease
from rft_data.core.roles import RoleSpec
from rft_data.core.rows import StepReport
from rft_data.core.words import HubRole
from rft_data.loop.closing import GroupCloser, stored_groups
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.exploring import Exploring
from rft_data.loop.fleet import Fleet
from rft_data.loop.online import OnlineLoop, Schedule
from rft_data.loop.resume import resume
from rft_data.loop.training import Training
from rft_data.placement import Surroundings, make_placement
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.hub.server import HubServer
from rft_data.sampler import History, make_sampler
from rft_data.sampler.conservation import check_conservation
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.tasks.selectors import Shuffle
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.loop.toy_run import OPERATORS, SIZE, TASKS
from tests.template import FORK

TOY = "tests.rft_data.loop.toy_run"
STEPS = 8


class Overlapped:
    """Two explorers and a trainer, each in its process, around a buffer and its hub in this one."""

    def __init__(
        self, root: Path, *, staleness: int, attempt: int = 0, rule: str = "mixed", pause_s: float = 0.05
    ) -> None:
        self.buffer = Buffer(root / "buffer")
        self.hub = HubServer(self.buffer).start()
        self.ledger = self.hub.ledger("run", attempt)
        self.versions = VersionRegistry(self.buffer, "run", root / "weights")
        surroundings = Surroundings("run", self.buffer, HubAccess(self.hub.address, self.hub.token))
        self.placement = make_placement("local", surroundings)
        pipeline = OperatorPipeline(OPERATORS, name="experience_ops")
        dispatcher = Dispatcher(Shuffle(TASKS, seed=0), {task.key: task for task in TASKS})
        checkpoints = root / "checkpoints"
        closer = GroupCloser(self.buffer, pipeline, "run", attempt, SIZE)
        at = resume(
            closer,
            self.ledger,
            self.versions,
            dispatcher,
            checkpoints=checkpoints,
            synchronous=staleness == 0,
        )
        self.sampler = make_sampler(
            "fifo",
            {},
            ledger=self.ledger,
            versions=self.versions,
            consumer=CONSUMER,
            groups_per_step=2,
            max_staleness=staleness,
            history=History(at.history, settled_steps=at.step),
        )
        trainer = {
            "root": str(checkpoints),
            "pipeline_hash": pipeline.pipeline_hash,
            "resume_from": None if at.directory is None else str(at.directory),
        }
        explorer = {"attempt": attempt, "rule": rule, "pause_s": pause_s}
        specs = [
            RoleSpec(f"explorer-{n}", f"{TOY}:explorer_role", explorer, hub_role=HubRole.EXPLORER)
            for n in range(2)
        ]
        specs.append(RoleSpec("trainer", f"{TOY}:trainer_role", trainer))
        self.placement.preflight(specs)
        *self.explorers, self.trainer = [self.placement.start(spec) for spec in specs]
        schedule = Schedule(STEPS, 2, 1, checkpoint_every=4, max_explored_per_step=16)
        self.staleness: list[int] = []
        self.loop = OnlineLoop(
            exploring=Exploring(
                closer=closer,
                sampler=self.sampler,
                dispatcher=dispatcher,
                fleet=Fleet(self.explorers, self.versions, whole_rounds=staleness == 0, deadline_s=60),
            ),
            buffer=self.buffer,
            ledger=self.ledger,
            training=Training(self.trainer, self.versions, publish_due=schedule.publish_due, deadline_s=60),
            versions=self.versions,
            schedule=schedule,
            checkpoints=checkpoints,
            step=at.step,
            on_step=self.note,
        )

    def note(self, loop: OnlineLoop, lease: Lease, report: StepReport) -> None:
        versions = self.buffer.take(lease.seqs).column("version_min").to_pylist()
        trained_at = self.versions.optimizer_step(lease.version)
        self.staleness.append(max(trained_at - self.versions.optimizer_step(v) for v in versions))

    def close(self) -> None:
        self.placement.close()
        self.hub.close()
        self.buffer.close()


def check(run: Overlapped, staleness: int) -> None:
    """Every promise of a finished run."""
    rows = check_conservation(run.buffer, run.ledger, CONSUMER, run.sampler.conservation(), STEPS)
    assert rows.trained == STEPS * 2 * SIZE
    assert rows.unjudged == 0
    assert len(run.staleness) == STEPS
    assert max(run.staleness) <= staleness
    groups = [g for lease in run.ledger.leases(CONSUMER) for g in lease.group_ids]
    assert len(groups) == len(set(groups)) == STEPS * 2


@pytest.mark.heavy
@pytest.mark.parametrize("staleness", [0, 3])
def test_explorers_and_trainer_in_their_own_processes_keep_the_books(tmp_path: Path, staleness: int) -> None:
    run = Overlapped(tmp_path, staleness=staleness)
    try:
        run.loop.run()
        check(run, staleness)
    finally:
        run.close()


@pytest.mark.heavy
def test_an_explorer_that_is_killed_is_started_again_and_its_tasks_are_played(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Overlapped(tmp_path, staleness=2, pause_s=0.2)
    stepped, killed = run.loop.on_step, []

    def kill_at_third(loop: OnlineLoop, lease: Lease, report: StepReport) -> None:
        stepped(loop, lease, report)
        if loop.step == 3:
            pid = run.explorers[0].call("pid", int, deadline_s=20).result()
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    run.loop.on_step = kill_at_third
    try:
        run.loop.run()
        check(run, 2)
        assert killed
        assert run.explorers[0].incarnation == 1
        assert "explorer-0 is started again" in caplog.text
    finally:
        run.close()


def run_to_the_end(root: Path, attempt: int, doomed: bool) -> None:
    """What a start of an asynchronous run does, in a process of its own; says each step it takes.

    A doomed one that is faster than its kill says its last step again, and waits.
    """
    run = Overlapped(root, staleness=3, attempt=attempt, rule="two", pause_s=0.1)
    stepped = run.loop.on_step

    def say(loop: OnlineLoop, lease: Lease, report: StepReport) -> None:
        stepped(loop, lease, report)
        os.write(1, b"%d\n" % loop.step)

    run.loop.on_step = say
    try:
        run.loop.run()
        if doomed:
            os.write(1, b"%d\n" % STEPS)
            time.sleep(600)
    finally:
        run.close()


@pytest.mark.heavy
def test_what_a_killed_asynchronous_run_trained_is_what_was_dispatched(tmp_path: Path) -> None:
    moments = np.random.default_rng(7)
    for attempt, kill_at in enumerate([1, 6, None]):
        call = f"run_to_the_end(Path({str(tmp_path)!r}), {attempt}, doomed={kill_at is not None})"
        code = f"{FORK}from {__name__} import Path, run_to_the_end; {call}"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if kill_at is not None and int(line) >= kill_at:
                    time.sleep(moments.uniform(0, 0.15))
                    child.kill()
                    break
        assert child.returncode == (0 if kill_at is None else -signal.SIGKILL)
    with Buffer(tmp_path / "buffer") as buffer:
        groups = stored_groups(buffer, "run")
        leases = Ledger(buffer, "run", 3).leases(CONSUMER)
    home = Counter(group.task for group in groups if group.outcome == "arrived")
    dispatched = Shuffle(TASKS, seed=0).select(home.total())
    assert home == Counter(dispatched), "a task was lost, or played twice"
    trained = [group_id for lease in leases for group_id in lease.group_ids]
    assert len(trained) == len(set(trained)) == STEPS * 2
    task_of = {group.ticket.group_id: group.task for group in groups}
    left = [
        group.task for group in groups if group.outcome == "arrived" and group.ticket.group_id not in trained
    ]
    assert Counter(task_of[group_id] for group_id in trained) + Counter(left) == Counter(dispatched)
