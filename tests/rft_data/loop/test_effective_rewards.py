"""A reward that operators shaped is the one that every reader sees, also of groups that were then dropped."""

import pytest

from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.groups import Lease, Played, Ticket
from rft_data.core.rows import Feedback, TaskKey
from rft_data.core.words import GroupOutcome
from rft_data.exchange.formats.mining import mined_pairs
from rft_data.loop.closing import GroupCloser, stored_groups
from rft_data.reading.overview import overview
from rft_data.sampler.awaiting import Awaiting, Delayed
from rft_data.sampler.policy import Candidate
from rft_data.sampler.replay import Replay
from rft_data.tasks.record import played, tally
from rft_data.tasks.selectors.base import scored
from tests.rft_data.conftest import make_experience
from trainers.offline.stored_rows import RowChoice, chosen_rows
from trainers.policy.batch_metrics import batch_metrics

BOXED = {"format_reward_mapper": {"boxed": True, "weight": -0.75}}
VARIANCE = {"reward_variance_filter": {}}
GRPO = {"grpo_advantage_mapper": {"scale": "none"}}
TASK = TaskKey("arith", "t0")


def close_groups(buffer: Buffer, operators: list, answers: dict[str, list[str]], **changes: object) -> list:
    """Store a group of each list of answers, all with reward 1.0 unless `changes` says more, and close it."""
    groups = []
    for ordinal, (name, texts) in enumerate(answers.items()):
        rows = [
            make_experience(
                experience_id=f"{name}/{n}",
                group_id=name,
                member=n,
                completion_text=text,
                messages=(
                    {"role": "user", "content": "1+1="},
                    {"role": "assistant", "content": f"{text} {n}"},
                ),
                prompt_messages=1,
                **changes,
            )
            for n, text in enumerate(texts)
        ]
        seqs = tuple(buffer.append(rows).seqs)
        groups.append(Played(Ticket(name, ordinal, 3), TASK, GroupOutcome.ARRIVED, seqs, len(seqs)))
    pipeline = OperatorPipeline(operators, name="experience_ops")
    awaiting = Awaiting(buffer, Delayed(600.0)) if changes else None
    return GroupCloser(buffer, pipeline, "run", 0, 1, awaiting).close(groups), pipeline.pipeline_hash


@pytest.fixture
def shaped(buffer: Buffer):
    """One group whose shaped rewards vary, and one whose do not; every stored reward is 1.0."""
    answers = {"run/g-0": [r"\boxed{2}", "2"], "run/g-1": [r"\boxed{2}", r"\boxed{2}"]}
    results, pipeline_hash = close_groups(buffer, [BOXED, VARIANCE, GRPO], answers)
    return buffer, results, pipeline_hash


@pytest.mark.slow
def test_the_variance_of_shaped_rewards_decides_and_selectors_learn_of_dropped_ones(shaped) -> None:
    buffer, results, _ = shaped
    assert [result.rewards for result in results] == [(0.25, 1.0), (0.25, 0.25)]
    assert [len(result.seqs) for result in results] == [2, 0]
    assert results[1].dropped_by == "reward_variance_filter"
    assert scored(results[1]) == [0.25, 0.25]
    assert [group.rewards for group in stored_groups(buffer, "run")] == [(0.25, 1.0), (0.25, 0.25)]
    passes, rollouts = tally(played(buffer), None)
    assert (passes.tolist(), rollouts.tolist()) == ([1.75], [4])


@pytest.mark.slow
def test_replay_draws_by_the_variance_of_shaped_rewards(shaped) -> None:
    _, results, _ = shaped
    weights = [Replay()._log_weight(Candidate(result, 0, 0, 0, 0)) for result in results]
    assert weights[0] > weights[1] + 1


@pytest.mark.slow
def test_pairs_rows_and_the_overview_read_the_shaped_reward(shaped) -> None:
    buffer, _, _ = shaped
    [pair] = [pair for pair in mined_pairs(buffer, None, 0.0) if not isinstance(pair, Exception)]
    assert (pair.chosen_experience_id, pair.chosen_score, pair.rejected_score) == ("run/g-0/1", 1.0, 0.25)
    chosen = chosen_rows(buffer, RowChoice(min_reward=0.5))
    assert chosen.table["experience_id"].to_pylist() == ["run/g-0/1"]
    assert chosen.scores.tolist() == [1.0]
    assert overview(buffer).reward_mean == pytest.approx((0.25 + 1.0 + 0.25 + 0.25) / 4)


@pytest.mark.slow
def test_the_trainer_reports_the_effective_reward_and_its_parts(shaped) -> None:
    buffer, results, pipeline_hash = shaped
    seqs = results[0].seqs
    lease = Lease("trainer", 0, 0, 3, seqs, ("run/g-0",), content_id(list(seqs)))
    found = batch_metrics(buffer.leased(lease, pipeline_hash).table)
    assert found["reward"] == pytest.approx(0.625)
    assert (found["raw_reward"], found["shaped_reward"]) == (1.0, pytest.approx(0.625))


def test_without_shaping_nothing_but_the_reward_is_reported(buffer: Buffer) -> None:
    results, pipeline_hash = close_groups(buffer, [GRPO], {"run/g-0": ["1", "2"]})
    assert set(buffer.read("annotations")["shaped_reward"].to_pylist()) == {None}
    seqs = results[0].seqs
    lease = Lease("trainer", 0, 0, 3, seqs, ("run/g-0",), content_id(list(seqs)))
    found = batch_metrics(buffer.leased(lease, pipeline_hash).table)
    assert found["reward"] == 1.0
    assert {"raw_reward", "shaped_reward"}.isdisjoint(found)


@pytest.mark.slow
def test_rewards_that_came_as_feedback_are_effective(buffer: Buffer) -> None:
    ids = ["run/g-0/0", "run/g-0/1"]
    rows = [make_experience(experience_id=name, group_id="run/g-0", member=n, reward=None)
            for n, name in enumerate(ids)]  # fmt: skip
    buffer.append(rows)
    buffer.add_feedback([Feedback(name, "grader", "reward", float(n)) for n, name in enumerate(ids)])
    pipeline = OperatorPipeline(
        [{"feedback_mapper": {}}, VARIANCE, GRPO], name="experience_ops", store=buffer
    )
    annotations = pipeline.run(buffer.take([0, 1]))
    assert annotations["shaped_reward"].to_pylist() == [0.0, 1.0]
    results, _ = close_groups(buffer, [GRPO], {"run/g-1": ["1", "2"]}, reward=None)
    assert results[0].rewards == (None, None)
    buffer.add_feedback([Feedback("run/g-1/0", "grader", "reward", 0.5)])
    plain = OperatorPipeline([GRPO], name="experience_ops")
    closer = GroupCloser(buffer, plain, "again", 0, 1, Awaiting(buffer, Delayed(600.0)))
    [result] = closer.close([Played(results[0].ticket, TASK, GroupOutcome.ARRIVED, (2, 3), 2)])
    assert result.rewards == (0.5, None)
