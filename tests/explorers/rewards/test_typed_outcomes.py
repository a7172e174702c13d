"""A failure of the world is never a failure of the model: typed from the reward to the advantage.

10 % of the calls of a reward, or of the rollouts of a workflow, die for reasons outside of the model. The
advantages of the others must be those of a run in which the dead were never played (open-instruct#1887).
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from explorers.limits import Limits
from explorers.meter import Meter, MeteredEngine
from explorers.plan import GroupPlan
from explorers.rewards.scoring import Rewards
from explorers.workflows.groups import GroupPlayer, together
from explorers.workflows.rollouts import Rollouts
from rft_data.core import codec, schema
from rft_data.core.engine import Engine, Sampling
from rft_data.core.groups import Group, Ticket
from rft_data.core.rows import Experience, Task, WeightRef, experience_id_of
from rft_data.core.trajectory import Trajectory
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import RolloutContext, Unscored
from tests.explorers.toys import ScriptedEngine

ROOT = Path(__file__).parents[3]
GROUPS, SIZE = 40, 8


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries come at once."""
    monkeypatch.setattr("explorers.workflows.rollouts._BACKOFF_S", 0.0)
    monkeypatch.setattr("explorers.rewards.scoring._BACKOFF_S", 0.0)


def dies(name: str) -> bool:
    """Every tenth name, by its hash."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest()[0] % 10 == 0


def worth(name: str) -> float:
    """What the model earned; never 0, so a 0 can only be made up."""
    return (1 + hashlib.blake2b(name.encode(), digest_size=8).digest()[1] % 4) / 4


class Grader:
    """Dies of a cause the first `deaths` times that it is asked about every tenth rollout."""

    def __init__(self, deaths: int, cause: str) -> None:
        self._deaths, self._cause, self._asked = deaths, cause, Counter[str]()

    def __call__(self, task: Task, completion: str) -> float | Unscored:
        self._asked[completion] += 1
        if dies(completion) and self._asked[completion] <= self._deaths:
            if self._cause == "raised":
                raise ConnectionResetError("the box is gone")
            return Unscored("the box is gone", UnscoredCause(self._cause))
        return worth(completion)


class Play:
    """A rollout whose text is its name; every tenth dies `deaths` times with its environment."""

    def __init__(self, rewards: Rewards, deaths: int) -> None:
        self._rewards, self._deaths, self._played = rewards, deaths, Counter[str]()

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        name = f"{ctx.group_id}/{ctx.member}"
        self._played[name] += 1
        if dies(name) and self._played[name] <= self._deaths:
            raise ConnectionResetError("the environment is gone")
        return [
            Experience(
                experience_id_of(ctx.run_id, task.key, ctx.attempt, ctx.group_id, ctx.member),
                ctx.source,
                ctx.run_id,
                task.taskset,
                task.task_id,
                ctx.group_id,
                member=ctx.member,
                completion_text=name,
                **await self._rewards.score(task, name),
            )
        ]


def explore(
    *, reward_deaths: int = 0, cause: str = "infrastructure", play_deaths: int = 0, **limits: Any
) -> tuple[list[Group], dict[str, float]]:
    """All groups of a run, and what was counted."""
    meter, bounds = Meter(), Limits(**limits)
    rewards = Rewards(
        {"grade": 1.0}, {"grade": Grader(reward_deaths, cause)}, None, meter, retries=bounds.retries
    )
    engine = ScriptedEngine(Path())
    engine.load_weights(WeightRef("run", 1, 0, ""))
    rollouts = Rollouts(MeteredEngine(engine, meter), Play(rewards, play_deaths), bounds, meter)
    plan = GroupPlan("run", 0, "e0", SIZE, Sampling(8), bounds)
    player = GroupPlayer(rollouts, plan, meter, rewards)
    task = Task("t", ({"role": "user", "content": "?"},))

    async def played() -> list[Group]:
        return await together([player.play(Ticket(f"g{n}", n, 1), task) for n in range(GROUPS)])

    return asyncio.run(played()), meter.take()


@pytest.fixture(scope="module")
def judge_rows() -> Iterator[Any]:
    """The operators of the quickstart: rows -> advantage by completion, without rows that were dropped."""
    from ops.runtime.pipeline import OperatorPipeline

    operators = yaml.safe_load((ROOT / "recipes/quickstart.yaml").read_text())["experience_ops"]
    pipeline = OperatorPipeline(operators, name="experience_ops")

    def judged(rows: Sequence[Experience]) -> dict[str, float]:
        table = codec.to_table(rows, schema.EXPERIENCES)
        table = table.append_column("seq", pa.array(range(len(rows)), pa.int64()))
        table = table.append_column("digest", pa.array([""] * len(rows), pa.string()))
        out = pipeline.run(table)
        return {
            row.completion_text: advantage[0]
            for row, advantage, verdict in zip(
                rows, out["advantage"].to_pylist(), out["verdict"].to_pylist(), strict=True
            )
            if verdict == "kept"
        }

    yield judged
    pipeline.close()


def reference(rows: Sequence[Experience]) -> dict[str, float]:
    """GRPO's advantages with the statistics module: (x - mean) / (std + 1e-4), ddof 1."""
    found = {}
    for group in {row.group_id for row in rows}:
        values = {row.completion_text: row.reward for row in rows if row.group_id == group}
        mean, std = statistics.fmean(values.values()), statistics.stdev(values.values())
        found.update({name: (value - mean) / (std + 1e-4) if std else 0.0 for name, value in values.items()})
    return found


def rows_of(groups: Sequence[Group]) -> list[Experience]:
    return [row for group in groups for row in group.experiences]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["reward", "raised", "timeout", "judge", "workflow"])
def test_deaths_of_the_world_leave_the_advantages_of_the_rest_as_they_were(
    judge_rows: Any, where: str
) -> None:
    clean = rows_of(explore()[0])
    deaths: dict[str, Any] = {"play_deaths": 9} if where == "workflow" else {"reward_deaths": 9}
    cause = {"reward": "infrastructure", "workflow": "infrastructure"}.get(where, where)
    groups, numbers = explore(cause=cause, min_members=2, **deaths)
    alive = [row for row in clean if not dies(row.completion_text)]
    assert 0.05 < 1 - len(alive) / len(clean) < 0.15

    found = judge_rows(rows_of(groups))
    assert found == judge_rows(alive)
    wanted = reference(alive)
    assert found == pytest.approx({name: wanted[name] for name in found}, abs=1e-6)
    assert len(found) > 0.9 * len(alive)
    dead = [row for row in rows_of(groups) if dies(row.completion_text)]
    assert [row.reward for row in dead if row.reward is not None] == []
    counted = "infrastructure" if where == "raised" else cause
    name = "rollouts_failed" if where == "workflow" else "rollouts_unscored"
    assert numbers[f"{name}/{counted}"] == len(clean) - len(alive)
    if where != "workflow":
        assert {row.unscored_reason.split(":")[0] for row in dead} == {counted}


@pytest.mark.slow
def test_what_passes_within_the_retries_costs_nothing(judge_rows: Any) -> None:
    clean = rows_of(explore()[0])
    groups, numbers = explore(reward_deaths=1, play_deaths=1, retries=2)
    assert [row.reward for row in rows_of(groups)] == [row.reward for row in clean]
    assert judge_rows(rows_of(groups)) == judge_rows(clean)
    dead = sum(dies(row.completion_text) for row in clean)
    assert (numbers["rewards_retried"], numbers["rollouts_retried"]) == (dead, dead)
    assert {name for name in numbers if "/" in name} <= {"burned_tokens/retried", "burned_s/retried"}


@pytest.mark.slow
def test_what_no_retry_can_change_is_asked_once() -> None:
    _, numbers = explore(reward_deaths=9, cause="reward", retries=5)
    assert "rewards_retried" not in numbers
    assert numbers["rollouts_unscored/reward"] == numbers["rollouts_unscored"] > 0


def longest(group: list[Trajectory]) -> list[float]:
    """1.0 for the rollouts that earn the most of those that are shown."""
    most = max(worth(one.completion) for one in group)
    return [float(worth(one.completion) == most) for one in group]


def comparing_player(**limits: Any) -> GroupPlayer:
    """Every tenth rollout dies with its environment, for good."""
    meter, bounds = Meter(), Limits(retries=0, **limits)
    rewards = Rewards({"grade": 1.0, "best": 10.0}, {"grade": Grader(0, ""), "best": longest}, None, meter)
    engine = ScriptedEngine(Path())
    engine.load_weights(WeightRef("run", 1, 0, ""))
    rollouts = Rollouts(MeteredEngine(engine, meter), Play(rewards, 9), bounds, meter)
    return GroupPlayer(rollouts, GroupPlan("run", 0, "e0", SIZE, Sampling(8), bounds), meter, rewards)


def play_with_death(player: GroupPlayer) -> Group:
    """A group in which a rollout dies."""
    number = next(n for n in range(99) if any(dies(f"g{n}/{member}") for member in range(SIZE)))
    task = Task("t", ({"role": "user", "content": "?"},))
    return asyncio.run(player.play(Ticket(f"g{number}", number, 1), task))


def test_a_reward_of_the_group_compares_the_rollouts_that_are_there() -> None:
    group = play_with_death(comparing_player(min_members=2))
    assert group.outcome == "arrived"
    shown = [row for row in group.experiences if not dies(row.completion_text)]
    most = max(worth(row.completion_text) for row in shown)
    for row in shown:
        best = float(worth(row.completion_text) == most)
        assert row.reward == worth(row.completion_text) + 10.0 * best
        assert row.reward_parts == {"grade": worth(row.completion_text), "best": best}
    assert len(shown) == len(group.experiences) < SIZE


def test_the_rows_of_a_group_that_failed_say_why_nobody_compared_them() -> None:
    group = play_with_death(comparing_player())
    assert group.outcome == "failed"
    assert {row.reward for row in group.experiences} == {None}
    (why,) = {row.unscored_reason for row in group.experiences}
    assert why == "the reward: it compares the rollouts of a group, and the group failed"
