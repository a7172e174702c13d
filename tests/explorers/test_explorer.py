"""Groups and evaluations with the real workflow on the small engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from explorers.explorer import GroupExplorer
from explorers.rewards import AnswerFormat
from explorers.single_turn import SingleTurn, tokenizer_hash
from explorers.transformers_engine import TransformersEngine
from rft_data.errors import EngineError, ParityError
from rft_data.protocols import Engine, RolloutContext, Sampling, Unscored
from rft_data.rows import Experience, Task, Ticket, WeightRef, experience_id_of
from trainers.tiny_model import build_tiny_model
from trainers.weights import load_tokenizer, publishable

TASKS = [Task("sums", ({"role": "user", "content": f"{n} + {n} ="},), answer=str(2 * n)) for n in range(4)]


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    return load_tokenizer(model)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return build_tiny_model(folder, seed=3, hidden_size=64, num_layers=2)


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersEngine]:
    weights = tmp_path_factory.mktemp("v7")
    publishable(model, weights)
    engine = TransformersEngine(model, seed=0, max_model_len=128, options={})
    engine.load_weights(WeightRef("run", 7, 0, str(weights)))
    yield engine
    engine.close()


def constant(value: Any) -> Any:
    return lambda task, completion: value


def explorer(engine: Engine, tokenizer: Any, rewards: Mapping[str, Any], **changes: Any) -> GroupExplorer:
    settings: dict[str, Any] = {
        "run_id": "run",
        "attempt": 2,
        "group_size": 3,
        "sampling": Sampling(8, 0.7),
        "eval_sampling": Sampling(8, 0.0),
        "explorer_id": "explorer-0",
    }
    return GroupExplorer(engine, SingleTurn(tokenizer, rewards), **{**settings, **changes})


def assignments(tasks: list[Task]) -> list[tuple[Ticket, Task]]:
    return [(Ticket(f"g{i}", i, 7), task) for i, task in enumerate(tasks)]


def test_explore_returns_one_complete_group_per_ticket_in_order(engine: Any, tokenizer: Any) -> None:
    rewards = {"one": (constant(1.0), 0.5), "format": (AnswerFormat(), 0.25), "two": (constant(2), 2.0)}
    groups = explorer(engine, tokenizer, rewards).explore(assignments(TASKS))
    assert [g.ticket.group_id for g in groups] == ["g0", "g1", "g2", "g3"]
    assert all(g.outcome == "arrived" and not g.error for g in groups)
    for group in groups:
        assert [row.member for row in group.experiences] == [0, 1, 2]
        assert len({tuple(row.token_ids or ()) for row in group.experiences}) > 1
        for row in group.experiences:
            assert row.reward_parts == {"one": 1.0, "format": 0.0, "two": 2.0}
            assert row.reward == 4.5
            assert row.unscored_reason is None
            assert row.source == "rollout"
            assert (row.task_id, row.taskset) == (group.task.task_id, "sums")
            assert row.sampling == {"max_tokens": 8, "temperature": 0.7}


def test_token_columns_share_the_coordinates_of_prompt_and_completion(engine: Any, tokenizer: Any) -> None:
    (group,) = explorer(engine, tokenizer, {"one": (constant(1.0), 1.0)}).explore(assignments(TASKS[:1]))
    for row in group.experiences:
        messages = [dict(message) for message in TASKS[0].messages]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        length = len(row.token_ids)
        assert row.prompt_length == len(prompt)
        assert row.token_ids[: len(prompt)] == prompt
        assert row.action_mask == [0] * len(prompt) + [1] * (length - len(prompt))
        assert len(row.logprobs) == length
        assert all(row.logprobs[i] == 0.0 for i in range(len(prompt)))
        assert all(row.logprobs[i] < 0.0 for i in range(len(prompt), length))
        assert list(row.version_spans) == [(7, len(prompt), length)]
        assert (row.version_min, row.version_max) == (7, 7)
        completion = tokenizer.decode(row.token_ids[len(prompt) :], skip_special_tokens=True)
        assert row.completion_text == completion
        assert list(row.messages) == [*TASKS[0].messages, {"role": "assistant", "content": completion}]


def test_ids_name_the_rollout_and_nothing_else(engine: Any, tokenizer: Any) -> None:
    one = explorer(engine, tokenizer, {"one": (constant(1.0), 1.0)})
    first = [row for group in one.explore(assignments(TASKS)) for row in group.experiences]
    second = [row for group in one.explore(assignments(TASKS)) for row in group.experiences]
    assert [row.experience_id for row in first] == [row.experience_id for row in second]
    assert len({row.experience_id for row in first}) == 12
    assert first[4].experience_id == experience_id_of("run", TASKS[1].key, 2, "g1", 1)


def test_a_rollout_that_raises_fails_its_group_and_no_other(engine: Any, tokenizer: Any) -> None:
    def fragile(task: Task, completion: str) -> float:
        if task is TASKS[1]:
            raise ZeroDivisionError("no such sum")
        return 1.0

    groups = explorer(engine, tokenizer, {"fragile": (fragile, 1.0)}).explore(assignments(TASKS))
    assert [g.outcome for g in groups] == ["arrived", "failed", "arrived", "arrived"]
    assert groups[1].error == "3 of 3: ZeroDivisionError: no such sum"
    assert groups[1].experiences == ()
    assert len(groups[2].experiences) == 3


def test_a_failed_group_keeps_the_rollouts_that_went_well(engine: Any, tokenizer: Any) -> None:
    calls = iter(range(3))

    def fails_once(task: Task, completion: str) -> float:
        if next(calls) == 1:
            raise ZeroDivisionError("once")
        return 1.0

    (group,) = explorer(engine, tokenizer, {"one": (fails_once, 1.0)}).explore(assignments(TASKS[:1]))
    assert (group.outcome, group.error) == ("failed", "1 of 3: ZeroDivisionError: once")
    assert len(group.experiences) == 2


def test_a_prompt_too_long_fails_its_group_and_no_other(engine: Any, tokenizer: Any) -> None:
    long = Task("sums", ({"role": "user", "content": "1" * 200},), answer="1")
    groups = explorer(engine, tokenizer, {"one": (constant(1.0), 1.0)}).explore(assignments([long, TASKS[0]]))
    assert [g.outcome for g in groups] == ["failed", "arrived"]
    assert "max_model_len 128" in groups[0].error


def test_a_reward_that_is_not_finite_fails_the_group(engine: Any, tokenizer: Any) -> None:
    (group,) = explorer(engine, tokenizer, {"odd": (constant(float("nan")), 1.0)}).explore(
        assignments(TASKS[:1])
    )
    assert (group.outcome, "reward 'odd' returned nan" in group.error) == ("failed", True)


def test_an_unscored_part_leaves_the_reward_open_and_says_why(engine: Any, tokenizer: Any) -> None:
    rewards = {"one": (constant(1.0), 1.0), "judge": (constant(Unscored("judge is away")), 1.0)}
    (group,) = explorer(engine, tokenizer, rewards).explore(assignments(TASKS[:1]))
    assert group.outcome == "arrived"
    for row in group.experiences:
        assert row.reward is None
        assert row.unscored_reason == "judge: judge is away"
        assert row.reward_parts == {"one": 1.0}


def test_an_engine_that_cannot_serve_ends_the_exploration(model: Path, tokenizer: Any) -> None:
    unproven = TransformersEngine(model, seed=0, max_model_len=128, options={})
    one = explorer(unproven, tokenizer, {"one": (constant(1.0), 1.0)})
    with pytest.raises(ParityError, match="no proven weights"):
        one.explore(assignments(TASKS))
    with pytest.raises(ParityError, match="no proven weights"):
        one.evaluate(TASKS, "start")
    unproven.close()


class Broken:
    """A workflow in which the engine breaks down."""

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        raise EngineError("gone")


def test_an_engine_that_breaks_down_ends_the_exploration(engine: Any) -> None:
    one = GroupExplorer(
        engine,
        Broken(),
        run_id="run",
        attempt=0,
        group_size=2,
        sampling=Sampling(4),
        eval_sampling=Sampling(4, 0.0),
        explorer_id="e",
    )
    with pytest.raises(EngineError, match="gone"):
        one.explore(assignments(TASKS))


def test_evaluate_plays_each_task_once_greedily_under_names_that_repeat(engine: Any, tokenizer: Any) -> None:
    one = explorer(engine, tokenizer, {"one": (constant(1.0), 1.0)})
    first, second = one.evaluate(TASKS, "start"), one.evaluate(TASKS, "start")
    assert [row.group_id for row in first] == [f"start-{task.task_id}" for task in TASKS]
    assert {(row.source, row.member, row.turn) for row in first} == {("eval", 0, 0)}
    strip = {"created_at": None}
    assert [dataclasses.replace(row, **strip) for row in first] == [
        dataclasses.replace(row, **strip) for row in second
    ]


def test_a_failed_evaluation_keeps_its_row_with_the_reason(engine: Any, tokenizer: Any) -> None:
    long = Task("sums", ({"role": "user", "content": "1" * 200},), answer="1")
    rows = explorer(engine, tokenizer, {"one": (constant(1.0), 1.0)}).evaluate([long, TASKS[0]], "end")
    assert [row.reward for row in rows] == [None, 1.0]
    assert rows[0].token_ids is None
    assert "rollout failed: RowError" in str(rows[0].unscored_reason)


def test_tokenizer_hash_ignores_padding_and_sees_the_template(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    before = tokenizer_hash(tokenizer)
    tokenizer(["1", "1 + 1"], padding=True, truncation=True, max_length=2)
    assert tokenizer_hash(tokenizer) == before
    tokenizer.chat_template = tokenizer.chat_template + " "
    assert tokenizer_hash(tokenizer) != before
