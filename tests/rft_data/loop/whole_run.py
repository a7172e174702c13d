"""A whole run with every hub part real; engine and optimizer are the small roles of `toy_run`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.core.groups import Lease
from rft_data.core.roles import ElasticPlacement, Placement, RoleSpec
from rft_data.core.rows import StepReport
from rft_data.core.words import HubRole
from rft_data.loop.closing import GroupCloser, stored_groups
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.exploring import Exploring
from rft_data.loop.extras import Extras
from rft_data.loop.fleet import Fleet
from rft_data.loop.online import OnlineLoop, Schedule
from rft_data.loop.resume import resume
from rft_data.loop.training import Training
from rft_data.placement.hub.server import HubServer
from rft_data.placement.inline import InlinePlacement
from rft_data.sampler import History, make_sampler
from rft_data.sampler.awaiting import Awaiting, Delayed
from rft_data.sampler.conservation import check_conservation
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.tasks.selectors.make import make_selector
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.loop.jittery import Jittery
from tests.rft_data.loop.toy_run import OPERATORS, SIZE, TASKS

TOY = "tests.rft_data.loop.toy_run"


class WholeRun:
    """One start of a run: everything rebuilt from the folder, as a restarted process would."""

    def __init__(
        self,
        root: Path,
        attempt: int,
        *,
        rule: str = "mixed",
        failing: bool = False,
        every: int = 1,
        staleness: int = 0,
        groups: int = 2,
        steps: int = 6,
        checkpoint_every: int = 3,
        wait_s: float | None = None,
        max_explored: int = 8,
        selector: str = "shuffle",
        explorers: int = 1,
        jitter: int | None = None,
        placed: Callable[[Buffer, HubServer], ElasticPlacement] | None = None,
        extras: int = 0,
        opened: ExitStack | None = None,
    ) -> None:
        """`jitter`: seed of how long calls take, each role in a thread; None: every call runs at once.

        `opened` closes what a start that fails had opened; without it call `close`. `placed` makes one
        of processes, which reach the buffer through a hub; then `extras` explorers may join, which take a
        minute for a group, and the other takes 0.1 s.
        """
        self.buffer = Buffer(root / "buffer")
        self.hub = None if placed is None else HubServer(self.buffer).start()
        self.placement: Placement = InlinePlacement(self.buffer)
        if jitter is not None:
            self.placement = Jittery(self.buffer, jitter)
        joining = None
        if placed is not None and self.hub is not None:
            self.placement = joining = placed(self.buffer, self.hub)
        if opened is not None:
            opened.callback(self.close)
        operators = OPERATORS if wait_s is None else [{"feedback_mapper": {}}, *OPERATORS]
        pipeline = OperatorPipeline(operators, name="experience_ops", store=self.buffer)
        awaiting = None if wait_s is None else Awaiting(self.buffer, Delayed(wait_s))
        self.ledger = Ledger(self.buffer, "run", attempt)
        self.versions = VersionRegistry(self.buffer, "run", root / "weights")
        self.dispatcher = Dispatcher(
            make_selector(selector, {}, TASKS, 0), {task.key: task for task in TASKS}
        )
        synchronous = every == 1 and staleness == 0
        closer = GroupCloser(self.buffer, pipeline, "run", attempt, SIZE, awaiting)
        at = resume(
            closer,
            self.ledger,
            self.versions,
            self.dispatcher,
            checkpoints=root / "checkpoints",
            synchronous=synchronous,
        )
        self.sampler = make_sampler(
            "fifo",
            {},
            ledger=self.ledger,
            versions=self.versions,
            consumer=CONSUMER,
            groups_per_step=groups,
            max_staleness=staleness,
            history=History(at.history, settled_steps=at.step),
        )
        explorer = {"attempt": attempt, "rule": rule, "failing": failing}
        trainer = {
            "root": str(root / "checkpoints"),
            "pipeline_hash": pipeline.pipeline_hash,
            "resume_from": None if at.directory is None else str(at.directory),
        }
        if joining is not None:
            explorer["pause_s"] = 0.1
        specs = [
            RoleSpec(
                f"explorer-{n}", f"{TOY}:explorer_role", {**explorer, "seed": n}, hub_role=HubRole.EXPLORER
            )
            for n in range(explorers)
        ]
        joins = [
            replace(specs[0], name=f"explorer-{n}", arguments={**explorer, "pause_s": 60.0})
            for n in range(explorers, explorers + extras)
        ]
        fleet = [self.placement.start(spec) for spec in specs]
        self.explorer = fleet[0]
        self.trainer = self.placement.start(
            RoleSpec("trainer", f"{TOY}:trainer_role", trainer, hub_role=HubRole.LEARNER)
        )
        self.steps = steps
        self.staleness: list[int] = []
        schedule = Schedule(steps, groups, every, checkpoint_every, max_explored_per_step=max_explored)
        self.loop = OnlineLoop(
            exploring=Exploring(
                closer=closer,
                sampler=self.sampler,
                dispatcher=self.dispatcher,
                repeats=dict(at.repeats),
                fleet=Fleet(
                    fleet,
                    self.versions,
                    whole_rounds=joining is None,
                    deadline_s=60,
                    extras=None if joining is None else Extras(joining, joins, lambda: extras),
                ),
            ),
            buffer=self.buffer,
            ledger=self.ledger,
            training=Training(self.trainer, self.versions, publish_due=schedule.publish_due, deadline_s=60),
            versions=self.versions,
            schedule=schedule,
            checkpoints=root / "checkpoints",
            step=at.step,
            on_step=self.note,
        )

    def note(self, loop: OnlineLoop, lease: Lease, report: StepReport) -> None:
        oldest = {r.ticket.group_id: r.version_min for r in stored_groups(self.buffer, "run")}
        steps = [self.versions.optimizer_step(oldest[group_id]) for group_id in lease.group_ids]
        self.staleness += [self.versions.optimizer_step(lease.version) - step for step in steps]

    def close(self) -> None:
        self.placement.close()
        if self.hub is not None:
            self.hub.close()
        self.buffer.close()

    def check(self) -> None:
        check_conservation(self.buffer, self.ledger, CONSUMER, self.sampler.conservation(), self.steps)
        leases = sorted(self.ledger.leases(CONSUMER), key=lambda lease: lease.step)
        groups = [g for lease in leases for g in lease.group_ids]
        assert len(groups) == len(set(groups))
        rows = self.buffer.read("experiences", ["group_id"]).column("group_id").to_pylist()
        known = {row["group_id"] for row in self.buffer.read("groups").to_pylist()}
        assert set(rows) <= known, "a stored group is in no book"
        judged = set(self.buffer.read("annotations").column("seq").to_pylist())
        assert judged == set(range(len(self.buffer)))

    def trained(self) -> list[str]:
        """What the final checkpoint says was trained: a hash of each step's rows."""
        text = (self.loop.checkpoints / f"checkpoint-{self.steps}" / "trained.txt").read_text()
        return text.splitlines()
