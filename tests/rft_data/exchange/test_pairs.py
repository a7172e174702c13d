"""Pairs from real GSM8K rollouts, through the operator, into the `preferences` table."""

import json

import pytest

from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.exchange import pairs
from rft_data.exchange.formats.mining import mined_pairs
from rft_data.exchange.pairs import store_pairs
from tests.gsm8k import solutions
from tests.rft_data.conftest import make_experience

MODELS = ("6b_finetuning", "6b_verification")


def rollouts():
    """Two models' answers to each of the first questions, with their correctness."""
    return [
        make_experience(
            experience_id=f"e{number:03d}/{member}",
            group_id=f"g{number}",
            task_id=f"t{number}",
            member=member,
            messages=(
                {"role": "user", "content": given["question"]},
                {"role": "assistant", "content": given[model]["solution"]},
            ),
            prompt_messages=1,
            completion_text=given[model]["solution"],
            reward=float(given[model]["is_correct"]),
        )
        for number, given in enumerate(solutions(150))
        for member, model in enumerate(MODELS)
    ]


def judged(buffer, *operators):
    rows = buffer.take(range(len(buffer)))
    return rows, OperatorPipeline([*operators], name="experience_ops").run(rows)


@pytest.mark.slow
def test_best_against_worst_finds_the_groups_that_mining_finds(buffer: Buffer) -> None:
    buffer.append(rollouts())
    mined = {pair.task_id for pair in mined_pairs(buffer, None, 0.5) if not isinstance(pair, Exception)}
    done = store_pairs(buffer, *judged(buffer, {"preference_pair_mapper": {"margin": 0.5}}))
    stored = buffer.read("preferences").to_pylist()
    assert done.found == done.stored == len(stored) >= 15
    assert done.refused == ()
    assert {row["task_id"] for row in stored} == mined
    rewards = {row.experience_id: row.reward for row in rollouts()}
    for row in stored:
        assert rewards[row["chosen_experience_id"]] == row["chosen_score"] == 1.0
        assert rewards[row["rejected_experience_id"]] == row["rejected_score"] == 0.0
        assert row["source"] == "mined"


@pytest.mark.slow
def test_all_pairs_are_stored_once_and_not_of_dropped_rows(buffer: Buffer) -> None:
    buffer.append(rollouts())
    every = {"preference_pair_mapper": {"pairs": "all"}}
    rows, annotations = judged(buffer, every)
    done = store_pairs(buffer, rows, annotations)
    assert done.found == done.stored >= 15
    again = store_pairs(buffer, rows, annotations)
    assert (again.found, again.stored) == (done.found, 0)
    short = {"text_length_filter": {"max_len": 120}}
    fewer = store_pairs(buffer, *judged(buffer, every, short))
    assert 0 < fewer.found < done.found
    assert fewer.stored == 0


@pytest.mark.slow
def test_scores_are_the_rewards_that_a_pair_was_chosen_by(buffer: Buffer) -> None:
    buffer.append(
        [
            make_experience(
                member,
                group_id="g",
                member=member,
                messages=({"role": "user", "content": "1+1="}, {"role": "assistant", "content": text}),
                prompt_messages=1,
                completion_text=text,
                reward=reward,
            )
            for member, (text, reward) in enumerate([("it is 2", 1.0), ("2", 0.5)])
        ]
    )
    short = {"format_reward_mapper": {"pattern": r"\A\d\z", "weight": 2.0}}
    assert store_pairs(buffer, *judged(buffer, short, {"preference_pair_mapper": {}})).stored == 1
    [pair] = buffer.read("preferences").to_pylist()
    assert json.loads(pair["chosen"])[0]["content"] == "2"
    assert (pair["chosen_score"], pair["rejected_score"]) == (2.5, 1.0)


def test_a_pair_that_is_none_says_why(
    buffer: Buffer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pairs, "_logged", set())
    said = ({"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"})
    other = ({"role": "user", "content": "2+2="}, {"role": "assistant", "content": "5"})
    rows = [
        make_experience(member, messages=messages, prompt_messages=1, reward=reward, group_id=group)
        for member, (messages, reward, group) in enumerate(
            [(said, 1.0, "a"), (said, 0.0, "a"), (said, 1.0, "b"), (other, 0.0, "b")]
        )
    ]
    buffer.append(rows)
    done = store_pairs(buffer, *judged(buffer, {"preference_pair_mapper": {}}))
    assert (done.found, done.stored) == (2, 0)
    assert [why.split("rows ")[1] for why in done.refused] == [
        "have the same answer",
        "have different prompts (a step-wise workflow)",
    ]
    logged = [record for record in caplog.records if record.name == pairs.log.name]
    assert [record.getMessage() for record in logged] == [
        f"1 preference pairs that operators found are not stored: {why}; logged once for each reason"
        for why in done.refused
    ]
    store_pairs(buffer, *judged(buffer, {"preference_pair_mapper": {}}))
    assert [record for record in caplog.records if record.name == pairs.log.name] == logged


def test_nothing_to_store(buffer: Buffer) -> None:
    buffer.append([make_experience(0, prompt_messages=1)])
    done = store_pairs(buffer, *judged(buffer, {"preference_pair_mapper": {}}))
    assert (done.found, done.stored, done.refused) == (0, 0, ())
    done = store_pairs(buffer, *judged(buffer))
    assert (done.found, done.stored) == (0, 0)
