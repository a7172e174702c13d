"""Rescoring: a version of the reward beside the stored one, which groups can be judged and trained by."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from explorers.rewards.scoring import Rewards
from rft_data import Trajectory
from rft_data.buffer import Buffer
from rft_data.cli.data_rescore import rescored_text
from rft_data.core.filters import Compare
from rft_data.core.rows import Feedback, Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored
from rft_data.exchange.feedback import feedback_about, fold, read_feedback
from rft_data.loop.closing import stored_groups
from rft_data.reading.lineage import lineage
from rft_data.reading.whole_groups import whole_groups
from rft_data.run.rejudge import ScoreLines, Version, in_shard, readmit, rescore, version_name
from rft_data.sampler import History, make_sampler
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.run.rejudge.explored import STRICT, explore, pipeline

STORED = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
"""STRICT keeps the first group alone."""
TASKS = [
    Task("arith", ({"role": "user", "content": f"question {n}"},), answer=f"{n}") for n in range(len(STORED))
]
VERSION = Version("other")


def by_member(task: Task, completion: str) -> float:
    """Another reward than the stored: 3 for member 0 and -1 for member 1 of every group."""
    return 3.0 if completion.startswith("answer 0") else -1.0


@pytest.fixture
def explored(buffer: Buffer) -> Buffer:
    buffer.add_tasks(TASKS)
    explore(buffer, STORED, tasks=TASKS)
    return buffer


def run(
    buffer: Buffer, reward: Callable[..., Any] = by_member, version: Version = VERSION, **given: Any
) -> Any:
    rewards = Rewards({"r": 1.0}, {"r": reward}, retries=0)
    given = {"keep": buffer.add_feedback, "known": set(), **given}
    return rescore(buffer, rewards, whole_groups(buffer, "run"), version, **given)


def values(buffer: Buffer, key: str = VERSION.key) -> list[float]:
    """The version's value of each row, in their order."""
    ids = buffer.read("experiences", ["experience_id"]).column(0)
    return [
        float(value) for value in fold(feedback_about(buffer, key, ids.to_pylist()), "mean").values_for(ids)
    ]


@pytest.mark.slow
def test_a_version_lies_beside_the_stored_reward(explored: Buffer) -> None:
    found = run(explored)
    assert (found.groups, found.scored, found.changed, found.before) == (3, 6, 6, 0)
    assert (found.mean_stored, found.mean_new) == (0.5, 1.0)
    assert values(explored) == [3.0, -1.0] * 3
    assert explored.read("experiences", ["reward"]).column(0).to_pylist() == [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    said = explored.read("feedback", ["author", "text"]).to_pylist()[0]
    assert (said["author"], json.loads(said["text"])) == ("rescore 1", {"parts": {"r": 3.0}})
    assert 'feedback_mapper: {key: "reward@other", how: mean, replace: true}' in rescored_text(found, None)


@pytest.mark.slow
def test_another_call_goes_on_where_a_killed_one_stopped(
    explored: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    calls = itertools.count()

    def dying(feedback: Sequence[Feedback]) -> None:
        if next(calls) == 1:
            raise Killed
        explored.add_feedback(feedback)

    monkeypatch.setattr("rft_data.run.rejudge.reward_version._GROUPS_PER_BATCH", 1)
    with pytest.raises(Killed):
        run(explored, keep=dying)
    again = run(explored)
    assert (again.before, again.scored) == (2, 4)
    last = run(explored)
    assert (last.before, last.scored, last.mean_new) == (6, 0, None)
    assert explored.counts()["feedback"] == 6


@pytest.mark.slow
def test_what_failed_is_tried_again_and_what_cannot_be_scored_is_not(explored: Buffer) -> None:
    why = {"answer 0": UnscoredCause.INFRASTRUCTURE, "answer 1": UnscoredCause.REWARD}
    found = run(explored, lambda task, completion: Unscored("no", why[completion[:8]]))
    assert (found.scored, found.unscored, found.failed) == (0, 3, 3)
    again = run(explored)
    assert (again.before, again.scored, again.failed) == (3, 3, 0)


@pytest.mark.slow
def test_repeated_scoring_tells_how_far_a_judge_disagrees_with_itself(explored: Buffer) -> None:
    numbers = itertools.cycle([0.0, 1.0, 0.5])
    found = run(explored, lambda task, completion: next(numbers), Version("judge", times=4))
    assert (found.scored, found.times) == (24, 4)
    assert found.spread is not None
    assert 0.0 < found.spread <= 0.5
    assert {row["author"] for row in explored.read("feedback", ["author"]).to_pylist()} == set(
        Version("", 4).authors
    )
    assert len(values(explored, "reward@judge")) == 6
    assert run(explored, by_member, Version("judge", times=5)).scored == 6


@pytest.mark.slow
def test_rewards_of_groups_see_whole_groups(explored: Buffer) -> None:
    def rank(group: list[Trajectory]) -> list[float]:
        return [float(sorted(one.completion for one in group).index(one.completion)) for one in group]

    assert run(explored, rank).scored == 6
    assert values(explored) == [0.0, 1.0] * 3


@pytest.mark.slow
def test_shards_share_the_groups_and_may_write_files(explored: Buffer, tmp_path: Path) -> None:
    names = [f"run/0-{n:08d}" for n in range(200)]
    shares = [[name for name in names if in_shard(name, number, 3)] for number in (1, 2, 3)]
    assert sorted(itertools.chain(*shares)) == names
    assert min(map(len, shares)) > 40
    file = tmp_path / "scores.jsonl"
    first = run(explored, keep=ScoreLines(file).append)
    assert (first.scored, explored.counts()["feedback"]) == (6, 0)
    with file.open("a") as end:
        end.write('{"experience_id": "cut o')
    lines = ScoreLines(file)
    again = run(explored, keep=lines.append, known=lines.known(VERSION.key))
    assert (again.before, again.scored) == (6, 0)
    assert explored.add_feedback(read_feedback(file)) == 6
    assert values(explored) == [3.0, -1.0] * 3


@pytest.mark.slow
def test_rollouts_without_a_stored_task_are_counted(buffer: Buffer) -> None:
    explore(buffer, STORED)
    found = run(buffer)
    assert (found.without_task, found.scored) == (6, 0)


def test_the_name_of_a_version_is_that_of_its_rewards() -> None:
    given = [{"use": "exact_answer", "weight": 1.0}]
    assert (
        version_name(given) == version_name([dict(given[0])]) != version_name([{**given[0], "weight": 2.0}])
    )


@pytest.mark.slow
def test_groups_judged_by_a_version_are_trained_and_the_lineage_says_so(
    explored: Buffer, tmp_path: Path
) -> None:
    run(explored)
    operators = [{"feedback_mapper": {"key": VERSION.key, "how": "mean", "replace": True}}, *STRICT]
    judged = pipeline(operators, explored)
    found = readmit(explored, "run", "book", judged, groups_per_batch=2, every=True)
    assert (found.rejected, found.admitted, found.rows) == (3, 3, 6)
    recipe = {"explored_by": "book", "experience_ops": operators}
    row = {"run_id": "training", "recipe": recipe, "recipe_hash": "h", "code_version": "0", "attempt": 0}
    explored.add_rows("runs", [row])
    sampler = make_sampler(
        "fifo",
        {},
        ledger=Ledger(explored, "book", 0),
        versions=VersionRegistry(explored, "book", tmp_path / "weights"),
        consumer=CONSUMER,
        groups_per_step=3,
        max_staleness=None,
        history=History(stored_groups(explored, "book")),
    )
    lease = sampler.lease(CONSUMER, 0, 3, 3)
    assert lease is not None
    batch = explored.leased(lease, judged.pipeline_hash).table
    advantages = [one for [one] in batch.column("advantage").to_pylist()]
    assert [value > 0 for value in advantages] == [True, False] * 3
    mine = explored.read("experiences", ["experience_id"], Compare("seq", "eq", 0)).column(0)[0].as_py()
    line = lineage(explored, mine)
    assert [use.reward_version for use in line.uses] == [VERSION.key]
    assert [said["value"] for said in line.feedback] == [3.0]
