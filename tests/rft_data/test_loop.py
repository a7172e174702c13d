"""The loop with every hub part real; only engine and optimizer are small stand-ins of their protocols."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.pipeline import OperatorPipeline
from rft_data import checkpoint
from rft_data.buffer import Buffer
from rft_data.conservation import check_conservation
from rft_data.errors import IntegrityError, StalledError
from rft_data.judge import recover_groups, stored_groups
from rft_data.ledger import Ledger
from rft_data.loop import CONSUMER, OnlineLoop, Schedule
from rft_data.protocols import Group
from rft_data.rows import Task
from rft_data.sampler import Fifo
from rft_data.selectors import Shuffle
from rft_data.versions import VersionRegistry
from tests.rft_data.conftest import experience_id_of, make_experience

TASKS = [Task("sums", ({"role": "user", "content": f"{i}+1="},), str(i + 1)) for i in range(24)]
OPERATORS = [{"reward_range_filter": {}}, {"reward_variance_filter": {}}, {"grpo_advantage_mapper": {}}]
SIZE = 2


class Crash(Exception):
    """What a kill looks like from inside."""


class TinyEngine:
    """Serves whatever version it was given."""

    version = -1

    def load_weights(self, ref) -> float:
        assert ref.version > self.version
        self.version = ref.version
        return 0.0


class TinyExplorer:
    """Groups whose rewards depend on the task: every third group has one outcome, some fail."""

    def __init__(self, attempt: int, rewards: Callable[[Task, int], float], failing: bool) -> None:
        self.engine = TinyEngine()
        self._attempt = attempt
        self._rewards = rewards
        self._failing = failing

    def explore(self, assignments) -> list[Group]:
        groups = []
        for ticket, task in assignments:
            rows = tuple(
                make_experience(
                    experience_id=experience_id_of("run", task.key, self._attempt, ticket.group_id, member),
                    taskset=task.taskset,
                    task_id=task.task_id,
                    group_id=ticket.group_id,
                    attempt=self._attempt,
                    member=member,
                    reward=self._rewards(task, member),
                    version_min=self.engine.version,
                    version_max=self.engine.version,
                    version_spans=((self.engine.version, 2, 4),),
                )
                for member in range(SIZE)
            )
            failed = self._failing and ticket.ordinal % 5 == 4
            outcome = ("failed", "1 of 2: boom") if failed else ("arrived", "")
            groups.append(Group(ticket, task, rows[:1] if failed else rows, *outcome))
        return groups


class TinyTrainer:
    """Remembers what it trained on; its checkpoint is that memory."""

    def __init__(self, root: Path, resumed: checkpoint.Checkpoint | None) -> None:
        self._root = root
        self.trained: list[str] = []
        if resumed is not None:
            self.trained = (resumed.directory / "trained.txt").read_text().splitlines()

    @property
    def steps_done(self) -> int:
        return len(self.trained)

    def step(self, batch, *, checkpoint: bool = False) -> dict[str, float]:
        self.trained.append(",".join(batch.lease.group_ids))
        if checkpoint:
            folder = self.checkpoint_dir(self.steps_done)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "trained.txt").write_text("\n".join(self.trained))
        return {"loss": 0.0}

    def save_weights(self, directory: Path) -> None:
        (directory / "steps").write_text(str(self.steps_done))

    def checkpoint_dir(self, step: int) -> Path:
        return self._root / f"checkpoint-{step}"


def mixed(task: Task, member: int) -> float:
    return float(member == 0 or int(task.answer) % 3 == 0)


class House:
    """One start of a run: everything rebuilt from the folder, as a restarted process would."""

    def __init__(
        self,
        root: Path,
        attempt: int,
        *,
        rewards: Callable[[Task, int], float] = mixed,
        failing: bool = False,
        every: int = 1,
        staleness: int = 0,
        groups: int = 2,
        steps: int = 6,
    ) -> None:
        self.buffer = Buffer(root / "buffer")
        tasks = {task.key: task for task in TASKS}
        pipeline = OperatorPipeline(OPERATORS, name="experience_ops")
        self.recovered = recover_groups(tasks, SIZE, pipeline, self.buffer, "run", attempt)
        resumed = checkpoint.newest(root / "checkpoints")
        self.ledger = Ledger(self.buffer, "run", attempt)
        if resumed is not None:
            self.ledger.consume(CONSUMER, resumed.step)
        self.versions = VersionRegistry(self.buffer, "run", root / "weights")
        self.sampler = Fifo(
            self.ledger,
            self.versions,
            consumer=CONSUMER,
            groups_per_step=groups,
            max_staleness=staleness,
            history=stored_groups(self.buffer, "run"),
            settled_steps=0 if resumed is None else resumed.step,
        )
        self.trainer = TinyTrainer(root / "checkpoints", resumed)
        self.steps = steps
        self.loop = OnlineLoop(
            run_id="run",
            buffer=self.buffer,
            ledger=self.ledger,
            versions=self.versions,
            sampler=self.sampler,
            selector=Shuffle(TASKS, seed=0),
            explorer=TinyExplorer(attempt, rewards, failing),
            pipeline=pipeline,
            trainer=self.trainer,
            tasks=tasks,
            schedule=Schedule(steps, groups, every, checkpoint_every=3, max_explored_per_step=8),
            on_step=lambda step, metrics: None,
        )

    def check(self) -> None:
        check_conservation(self.buffer, self.ledger, CONSUMER, self.sampler.conservation(), self.steps)
        leases = sorted(self.buffer.read("leases").to_pylist(), key=lambda row: row["step"])
        assert self.trainer.trained == [",".join(row["group_ids"]) for row in leases]
        groups = [g for row in leases for g in row["group_ids"]]
        assert len(groups) == len(set(groups))
        rows = self.buffer.read("experiences", ["group_id"]).column("group_id").to_pylist()
        known = {row["group_id"] for row in self.buffer.read("groups").to_pylist()}
        assert set(rows) <= known, "a stored group is in no book"
        judged = set(self.buffer.read("annotations").column("seq").to_pylist())
        assert judged == set(range(len(self.buffer)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"every": 2, "staleness": 1},
        {"staleness": 2},
        {"failing": True},
        {"groups": 3, "every": 3, "staleness": 2},
    ],
    ids=str,
)
def test_loop_trains_every_step_and_keeps_its_books(tmp_path: Path, settings: dict) -> None:
    house = House(tmp_path, 0, **settings)
    house.loop.run()
    house.check()
    metrics = house.buffer.read("metrics").to_pylist()
    staleness = [m["value"] for m in metrics if m["key"] == "staleness_max"]
    assert len(staleness) == 6
    assert max(staleness) <= settings.get("staleness", 0)
    assert house.versions.latest == 6
    house.buffer.close()


def crash_points() -> list[tuple[str, str]]:
    """Every write a step makes, by the object that makes it."""
    return [
        ("buffer", "append"),
        ("buffer", "annotate"),
        ("buffer", "add_rows"),
        ("sampler", "lease"),
        ("trainer", "step"),
        ("sampler", "settle"),
        ("versions", "publish"),
        ("ledger", "consume"),
        ("loop", "checkpoint"),
        ("loop", "record"),
    ]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", crash_points(), ids="-".join)
def test_a_crash_at_any_write_leaves_books_that_a_restart_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: tuple[str, str], when: str
) -> None:
    for attempt, call in enumerate((2, 5, 1)):
        house = House(tmp_path, attempt, failing=True)
        target = house.loop if point[0] == "loop" else getattr(house, point[0])
        original, calls = getattr(target, point[1]), iter(range(1, 10_000))

        def failing(*args, original=original, calls=calls, call=call, **kwargs):
            crash = next(calls) == call
            if crash and when == "before":
                raise Crash
            result = original(*args, **kwargs)
            if crash:
                raise Crash
            return result

        monkeypatch.setattr(target, point[1], failing)
        try:
            house.loop.run()
        except Crash:
            house.buffer.close()
            continue
        house.check()
        house.buffer.close()
    final = House(tmp_path, 3, failing=True)
    final.loop.run()
    final.check()
    final.buffer.close()


def test_loop_goes_ahead_with_the_groups_it_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    house = House(tmp_path, 0, rewards=lambda task, member: float(member == 0 and task == TASKS[0]), steps=1)
    house.loop.schedule = Schedule(1, 2, 1, checkpoint_every=3, max_explored_per_step=24)
    house.loop.run()
    house.check()
    assert "goes ahead with 1 of 2 groups" in caplog.text
    house.buffer.close()


@pytest.mark.parametrize(
    ("failing", "message"), [(False, "operators drop every group"), (True, "last with: 1 of 2: boom")]
)
def test_loop_says_why_nothing_can_be_trained(tmp_path: Path, failing: bool, message: str) -> None:
    house = House(tmp_path, 0, rewards=lambda task, member: 1.0, failing=failing)
    with pytest.raises(StalledError, match=message):
        house.loop.run()
    house.buffer.close()


def test_conservation_check_finds_a_book_that_lies(tmp_path: Path) -> None:
    house = House(tmp_path, 0)
    house.loop.run()
    counts = house.sampler.conservation()
    for state in ("trained", "dropped", "admitted", "failed"):
        with pytest.raises(IntegrityError, match="not conserved"):
            check_conservation(house.buffer, house.ledger, CONSUMER, {**counts, state: counts[state] + 1}, 6)
    with pytest.raises(IntegrityError, match="steps consumed: 7 and 6"):
        check_conservation(house.buffer, house.ledger, CONSUMER, counts, 7)
    house.buffer.close()


def test_groups_without_a_single_rollout_are_accounted_for(tmp_path: Path) -> None:
    house = House(tmp_path, 0, failing=True)
    explore = house.loop.explorer.explore
    house.loop.explorer.explore = lambda assignments: [
        dataclasses.replace(group, experiences=(), outcome="failed", error="no prompt fits")
        for group in explore(assignments)
    ]
    with pytest.raises(StalledError, match="no prompt fits"):
        house.loop.run()
    counts = house.sampler.conservation()
    assert counts["failed"] == counts["admitted"] == 8
    assert house.buffer.counts()["groups"] == 8
    house.buffer.close()
