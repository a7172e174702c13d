"""Rewards by judges, against a real HTTP server that answers, and fails, as a test tells it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from explorers.limits import Limits
from explorers.rewards.judge_panel import agreement
from explorers.rewards.registry import built_in_kind, make_reward
from explorers.rewards.scoring import make_rewards
from rft_data.core.errors import OperatorError, RecipeError
from rft_data.core.rows import Task
from rft_data.core.trajectory import Trajectory
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored
from tests.ops.judge_server import Answer, JudgeServer, said, status

TASK = Task("t", ({"role": "user", "content": "Say a number"},), answer="7")
CRITERIA = [
    {"name": "right", "text": "It is 7.", "weight": 3},
    {"name": "brief", "text": "It is short."},
    {"name": "rude", "text": "It insults.", "weight": -2},
]


@pytest.fixture(autouse=True)
def quick_and_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses between tries; no proxy between here and here."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str, int], Answer]], JudgeServer]]:
    """Start servers; they end with the test."""
    servers: list[JudgeServer] = []

    def start(answer: Callable[[str, int], Answer]) -> JudgeServer:
        servers.append(JudgeServer(answer).__enter__())
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__()


def judges(*servers: JudgeServer) -> list[dict[str, str]]:
    return [{"base_url": one.base_url, "model": f"judge-{n}"} for n, one in enumerate(servers)]


def ask(reward: Any, *completions: str, task: Task = TASK) -> list[Any]:
    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(reward(task, text) for text in completions))

    return asyncio.run(all_at_once())


def test_agreement_is_one_minus_the_mean_distance_of_pairs() -> None:
    assert agreement([0.5]) == 1.0
    assert agreement([1.0, 0.0]) == 0.0
    assert agreement([0.0, 0.5, 1.0]) == pytest.approx(1 - (0.5 + 0.5 + 1.0) / 3)


@pytest.mark.slow
def test_a_judge_scores_a_completion_and_equal_ones_are_asked_once(serve: Any) -> None:
    server = serve(lambda prompt, _: said(f"I think.\nScore: {prompt.count('!')}"))
    reward = make_reward("llm_judge", {"judges": judges(server)})
    assert ask(reward, "a!", "b!!!!", "a!") == [0.1, 0.4, 0.1]
    prompts = [request["messages"][0]["content"] for request in server.requests]
    assert len(prompts) == 2
    assert all("Say a number" in prompt for prompt in prompts)
    assert server.requests[0]["temperature"] == 0.0


@pytest.mark.slow
def test_several_judges_are_averaged_and_their_agreement_is_reported(serve: Any) -> None:
    panel = [serve(lambda *_, n=n: said(f"Score: {n}")) for n in (2, 4)]
    reward = make_reward("llm_judge", {"judges": judges(*panel)})
    assert ask(reward, "x") == [{"reward": pytest.approx(0.3), "agreement": pytest.approx(0.8)}]


@pytest.mark.slow
def test_most_judges_must_answer_and_a_failure_is_the_judges(serve: Any) -> None:
    good, bad = serve(lambda *_: said("Score: 5")), serve(lambda *_: status(400))
    mute = serve(lambda *_: said("I will not say"))
    two_of_three = make_reward("llm_judge", {"judges": judges(good, good, bad), "limits": {"retries": 0}})
    assert ask(two_of_three, "x") == [{"reward": 0.5, "agreement": 1.0}]
    for failing, why in ((bad, "400"), (mute, "holds no score")):
        (found,) = ask(make_reward("llm_judge", {"judges": judges(good, failing)}), "x")
        assert isinstance(found, Unscored)
        assert found.cause is UnscoredCause.JUDGE
        assert found.reason.startswith("1 of 2 judgements failed: ")
        assert why in found.reason


@pytest.mark.slow
def test_what_may_pass_is_tried_again_and_replies_are_kept(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda _, number: status(503) if number < 2 else said("Score: 10"))
    args = {"judges": judges(server), "cache": str(tmp_path / "replies.sqlite"), "limits": {"retries": 2}}
    assert ask(make_reward("llm_judge", args), "x") == [1.0]
    assert ask(make_reward("llm_judge", args), "x") == [1.0]
    assert len(server.requests) == 3


def test_a_template_that_wants_an_answer_needs_one_in_the_task(serve: Any) -> None:
    server = serve(lambda *_: said("Score: 1"))
    args = {"judges": judges(server), "template": "{completion} {answer}"}
    (found,) = ask(make_reward("llm_judge", args), "x", task=Task("t", TASK.messages))
    assert found == Unscored("the task has no answer, which the judge's template wants")


def test_a_mistake_is_an_error_when_the_reward_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    one = {"base_url": "http://localhost:1/v1", "model": "m"}
    with pytest.raises(RecipeError, match=r"wanted .'api_key_env', 'base_url', 'model'. in each"):
        make_reward("llm_judge", {"judges": [{**one, "key": "x"}]})
    with pytest.raises(OperatorError, match="NO_SUCH_KEY"):
        make_reward("rubric", {"judges": [{**one, "api_key_env": "NO_SUCH_KEY"}], "criteria": CRITERIA})
    with pytest.raises(RecipeError, match="base_url is 'localhost'"):
        make_reward("group_ranking", {"judges": [{"base_url": "localhost", "model": "m"}]})
    for criteria in ([], [CRITERIA[0]] * 2, [CRITERIA[2]], [{"name": "reward", "text": "x"}], [{"nam": "x"}]):
        with pytest.raises(RecipeError, match="cannot be built"):
            make_reward("rubric", {"judges": [one], "criteria": criteria})


# --- rubric ----------------------------------------------------------------------------------------


def grades(**given: float) -> Answer:
    return said(f"Some words {{}} first.\n```json\n{json.dumps(given)}\n```")


@pytest.mark.slow
def test_a_rubric_is_the_weighted_mean_of_its_grades(serve: Any) -> None:
    first, second = (
        serve(lambda *_: grades(right=10, brief=5, rude=0)),
        serve(lambda *_: grades(right=8, brief=5, rude=5)),
    )
    (found,) = ask(make_reward("rubric", {"judges": judges(first, second), "criteria": CRITERIA}), "7")
    right, brief, rude = (1.0 + 0.8) / 2, 0.5, (0.0 + 0.5) / 2
    assert found == pytest.approx(
        {
            "right": right,
            "brief": brief,
            "rude": rude,
            "agreement": (0.8 + 1.0 + 0.5) / 3,
            "reward": (3 * right + 1 * brief - 2 * rude) / 4,
        }
    )
    prompt = first.requests[0]["messages"][0]["content"]
    assert "- right: It is 7." in prompt
    assert "[Reference answer]\n7" in prompt
    assert '{"right": <number>, "brief": <number>, "rude": <number>}' in prompt


@pytest.mark.slow
def test_a_task_may_have_a_rubric_of_its_own(serve: Any) -> None:
    server = serve(lambda *_: grades(kind=4))
    reward = make_reward("rubric", {"judges": judges(server)})
    own = Task("t", TASK.messages, metadata={"rubric": [{"name": "kind", "text": "It is kind."}]})
    assert ask(reward, "x", task=own) == [{"kind": 0.4, "reward": 0.4}]
    assert "Reference" not in server.requests[0]["messages"][0]["content"]
    (found,) = ask(reward, "x")
    assert isinstance(found, Unscored)
    assert found.cause is UnscoredCause.REWARD


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["{}", '{"right": 1}', '{"right": 1, "brief": 2, "rude": 11}', "no", "{" * 999]
)
def test_a_reply_that_grades_not_every_criterion_is_a_judges_failure(serve: Any, text: str) -> None:
    reward = make_reward("rubric", {"judges": judges(serve(lambda *_: said(text))), "criteria": CRITERIA})
    (found,) = ask(reward, "x")
    assert isinstance(found, Unscored)
    assert found.cause is UnscoredCause.JUDGE


# --- group ranking ---------------------------------------------------------------------------------


def by_length(prompt: str, number: int = 0) -> Answer:
    """Scores candidates by the length of their text."""
    found = re.findall(r"\[Candidate (\d+)\]\n(.*)", prompt)
    scores = {place: min(1.0, len(text) / 10) for place, text in found}
    return said(f"Longer is better. {json.dumps({'scores': scores})}")


def by_place(prompt: str, number: int = 0) -> Answer:
    """Likes what comes first, whatever it is."""
    found = re.findall(r"\[Candidate (\d+)\]", prompt)
    return said(json.dumps({"scores": {place: 1.0 / int(place) for place in found}}))


def group(*texts: str) -> list[Trajectory]:
    return [Trajectory(TASK, text) for text in texts]


def rank(reward: Any, *texts: str) -> Any:
    return asyncio.run(reward(group(*texts)))


@pytest.mark.slow
def test_scores_come_back_to_the_rollouts_they_are_of_however_they_were_shown(serve: Any) -> None:
    server = serve(by_length)
    found = {
        seed: rank(
            make_reward("group_ranking", {"judges": judges(server), "seed": seed}), "aaa", "b", "cccc", "b"
        )
        for seed in range(6)
    }
    assert set(map(tuple, found.values())) == {(0.3, 0.1, 0.4, 0.1)}
    shown = {
        tuple(re.findall(r"\[Candidate \d+\]\n(.*)", one["messages"][0]["content"]))
        for one in server.requests
    }
    assert {tuple(sorted(order)) for order in shown} == {("aaa", "b", "cccc")}  # equal ones once
    assert len(shown) > 1
    again = make_reward("group_ranking", {"judges": judges(server), "seed": 3})
    before = len(server.requests)
    rank(again, "cccc", "b", "aaa")
    assert server.requests[before]["messages"] == server.requests[3]["messages"]


@pytest.mark.slow
def test_several_orders_average_a_liking_for_places_out(serve: Any) -> None:
    server = serve(by_place)
    texts = ("a", "b", "c")
    once = rank(make_reward("group_ranking", {"judges": judges(server)}), *texts)
    assert sorted(once) == pytest.approx([1 / 3, 1 / 2, 1.0])
    many = rank(make_reward("group_ranking", {"judges": judges(server), "orders": 60}), *texts)
    values = [one["reward"] for one in many]
    assert max(values) - min(values) < 0.25
    assert many[0]["agreement"] < 0.8


@pytest.mark.slow
def test_a_candidate_shows_its_tools_and_a_bad_reply_is_a_judges_failure(serve: Any) -> None:
    server = serve(lambda *_: said('{"scores": {"1": 0.5}}'))
    said_with_tools = (
        *TASK.messages,
        {"role": "assistant", "content": "let me look"},
        {"role": "tool", "content": "it is 7"},
        {"role": "assistant", "content": "7"},
    )
    rollouts = [Trajectory(TASK, "7", said_with_tools, 1), Trajectory(TASK, "8")]
    found = asyncio.run(make_reward("group_ranking", {"judges": judges(server)})(rollouts))
    assert isinstance(found, Unscored)
    assert found.cause is UnscoredCause.JUDGE
    assert "tool: it is 7" in server.requests[0]["messages"][0]["content"]


def test_nothing_to_compare_asks_nobody(serve: Any) -> None:
    server = serve(by_length)
    reward = make_reward("group_ranking", {"judges": judges(server)})
    assert rank(reward, "a", "a") == [0.5, 0.5]
    assert isinstance(rank(reward, "a"), Unscored)
    assert server.requests == []


# --- in a run --------------------------------------------------------------------------------------


def test_a_judge_has_more_time_than_other_rewards() -> None:
    kinds = [built_in_kind(name) for name in ("llm_judge", "rubric", "group_ranking")]
    assert [kind.deadline_s for kind in kinds if kind] == [120.0] * 3
    assert all(kind.asynchronous for kind in kinds if kind)


@pytest.mark.slow
def test_judges_run_beside_each_other_in_a_child_and_a_failure_is_asked_again(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorers.rewards.scoring._BACKOFF_S", 0.0)
    server = serve(lambda _, number: said("hm") if number == 0 else said("Score: 5"))
    server.delay_s = 0.2
    component = {"use": "llm_judge", "args": {"judges": judges(server)}, "name": "judge", "max": 0.25}
    rewards = make_rewards([{"use": "exact_answer"}, component], Limits(retries=1))
    try:
        found = rewards.score_all([(TASK, f"#### {n}") for n in range(12)])
    finally:
        rewards.close()
    assert [one["reward"] for one in found] == [1.25 if n == 7 else 0.25 for n in range(12)]
    assert found[7]["reward_parts"] == {"exact_answer": 1.0, "judge": 0.5}
    assert len(server.requests) == 24  # a reply without a score is not kept: the judge is asked again
    assert server.most_in_flight >= 4
