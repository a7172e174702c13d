"""A curated run of the real loop, and the same run killed anywhere: it trains the same."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.core.roles import RoleSpec
from rft_data.core.rows import Task
from rft_data.loop.closing import GroupCloser
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.exploring import Exploring
from rft_data.loop.fleet import Fleet
from rft_data.loop.online import OnlineLoop, Schedule
from rft_data.loop.resume import resume
from rft_data.loop.training import Training
from rft_data.placement.inline import InlinePlacement
from rft_data.sampler import History, make_sampler
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.tasks.curator import TaskCurator
from rft_data.tasks.selectors.make import make_selector
from rft_data.tasks.synthesis import make_synthesis
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.loop.toy_run import OPERATORS, SIZE, TASKS

TOY = "tests.rft_data.loop.toy_run"
STEPS, EVERY = 9, 3
OPS = [{"task_pass_rate_filter": {"min_rollouts": 3, "max_pass_rate": 0.5, "window": 20}}]


class Crash(BaseException):
    """What a kill looks like from inside."""


def again(task: Task, experiences, rng) -> list[Task]:
    """The same sum, asked twice, naming how many experiences were shown; of a variant, none."""
    if "again" in task.messages[0]["content"]:
        return []
    number = f"{rng.integers(10**6)} {len(experiences)}"
    asked = {"role": "user", "content": f"{task.messages[0]['content']} again {number}"}
    return [replace(task, messages=(asked,))]


class House:
    """One start of a curated run, from the folder; `die(step)` is called after curation, before the seal."""

    def __init__(self, root: Path, attempt: int, die: Callable[[int], None]) -> None:
        self.die = die
        self.buffer = Buffer(root / "buffer")
        self.ledger = Ledger(self.buffer, "run", attempt)
        versions = VersionRegistry(self.buffer, "run", root / "weights")
        pipeline = OperatorPipeline(OPERATORS, name="experience_ops")
        known = {task.key: task for task in TASKS}
        self.curator = TaskCurator(
            buffer=self.buffer,
            run_id="run",
            selector=make_selector("difficulty", {}, TASKS, 0),
            tasks=known,
            pipeline=OperatorPipeline(OPS, name="task_upkeep", text_column="text"),
            every=EVERY,
            least_playable=2,
            synthesis=make_synthesis("tests.rft_data.tasks.test_curated_loop:again", {}, parents=2),
        )
        self.dispatcher = Dispatcher(self.curator, known)
        checkpoints = root / "checkpoints"
        closer = GroupCloser(self.buffer, pipeline, "run", attempt, SIZE)
        at = resume(
            closer,
            self.ledger,
            versions,
            self.dispatcher,
            checkpoints=checkpoints,
            synchronous=True,
        )
        self.sampler = make_sampler(
            "fifo",
            {},
            ledger=self.ledger,
            versions=versions,
            consumer=CONSUMER,
            groups_per_step=2,
            max_staleness=0,
            history=History(at.history, settled_steps=at.step),
        )
        self.placement = InlinePlacement(self.buffer)
        explorer = RoleSpec("explorer-0", f"{TOY}:explorer_role", {"attempt": attempt})
        resume_from = None if at.directory is None else str(at.directory)
        arguments = {
            "root": str(checkpoints),
            "pipeline_hash": pipeline.pipeline_hash,
            "resume_from": resume_from,
        }
        trainer = self.placement.start(RoleSpec("trainer", f"{TOY}:trainer_role", arguments))
        fleet = Fleet([self.placement.start(explorer)], versions, whole_rounds=True, deadline_s=60)
        schedule = Schedule(STEPS, 2, 1, EVERY, max_explored_per_step=16)
        self.loop = OnlineLoop(
            exploring=Exploring(
                closer=closer,
                sampler=self.sampler,
                dispatcher=self.dispatcher,
                fleet=fleet,
                repeats=dict(at.repeats),
            ),
            buffer=self.buffer,
            ledger=self.ledger,
            training=Training(trainer, versions, publish_due=schedule.publish_due, deadline_s=60),
            versions=versions,
            schedule=schedule,
            checkpoints=checkpoints,
            step=at.step,
            on_step=self.stepped,
        )

    def stepped(self, loop: OnlineLoop, *_: object) -> None:
        self.die(-loop.step)
        if self.curator.due(loop.step):
            self.curator.curate(loop.step, {*self.ledger.retired(CONSUMER), *loop.exploring.ahead()})
            self.die(loop.step)

    def run(self) -> tuple[list[str], list[tuple], dict]:
        """To the end; what was trained, by which tasks, and what the curator knows."""
        try:
            self.loop.run()
            trained = (self.loop.checkpoints / f"checkpoint-{STEPS}" / "trained.txt").read_text().splitlines()
            leased = {g for lease in self.ledger.leases(CONSUMER) for g in lease.group_ids}
            rows = self.buffer.read("groups").to_pylist()
            played = [(row["ordinal"], row["task_id"]) for row in rows if row["group_id"] in leased]
            tasks = [task_id for _, task_id in sorted(played)]
            # the selector's own state holds version numbers, which have a gap after a restart
            state = {key: self.curator.state_dict()[key] for key in ("retired", "added", "tried")}
            return trained, tasks, state
        finally:
            self.placement.close()
            self.buffer.close()


def live(step: int) -> None:
    """Nobody dies."""


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[tuple], dict]:
    return House(tmp_path_factory.mktemp("straight"), 0, live).run()


@pytest.mark.slow
def test_a_run_retires_what_the_operators_drop_and_plays_what_it_made(straight):
    trained, played, state = straight
    assert len(trained) == STEPS
    assert state["retired"], "no task that was played twice was retired"
    made = {task_id for _, task_id in state["added"]}
    assert made & set(played), "no new task was trained on"


@pytest.mark.slow
@pytest.mark.parametrize("dies_at", [-3, 3, -5, 6])
def test_a_killed_run_trains_the_same(tmp_path: Path, straight, dies_at: int):
    """Killed between steps, before curation at a checkpoint's step, and after it but before the seal."""

    def die(step: int) -> None:
        if step == dies_at:
            raise Crash

    with pytest.raises(Crash):
        House(tmp_path, 0, die).run()
    assert House(tmp_path, 1, live).run() == straight


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 5, 7])
def test_groups_of_a_step_that_was_killed_are_no_evidence(tmp_path: Path, straight, step: int, monkeypatch):
    """They are set aside and their tasks played again: counted twice, they would retire too many."""
    house = House(tmp_path, 0, live)
    lease = house.sampler.lease

    def dying(consumer: str, at: int, *args: object) -> object:
        if at == step and house.sampler.ready >= 2:
            raise Crash
        return lease(consumer, at, *args)

    monkeypatch.setattr(house.sampler, "lease", dying)
    with pytest.raises(Crash):
        house.run()
    again = House(tmp_path, 1, live)
    assert again.ledger.retired(CONSUMER), "nothing was set aside"
    assert again.run() == straight


@pytest.mark.slow
def test_falling_back_over_a_curation_ends_as_a_straight_run(tmp_path: Path, straight, caplog):
    """Leases granted since are trained again, and the tasks are curated again between them."""

    def die(step: int) -> None:
        if step == -8:
            raise Crash

    with pytest.raises(Crash):
        House(tmp_path, 0, die).run()
    sealed = House(tmp_path, 1, live)
    sealed.placement.close()
    sealed.buffer.close()
    newest = tmp_path / "checkpoints" / "checkpoint-6"
    damaged = next(path for path in newest.iterdir() if path.name != "manifest.json")
    damaged.write_text(f"{damaged.read_text()}x")
    assert House(tmp_path, 2, live).run() == straight
    assert "checkpoint-6/trained.txt does not match the digest" in caplog.text
