"""llm_score_mapper over GSM8K's real solutions, with a judge over HTTP.

With a vLLM server: tests/explorers/engines/test_openai_vllm_server.py, which has one.
"""

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest

from ops.judge import judge_client
from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.core.errors import OperatorError, RecipeError
from tests.ops.judge_server import JudgeServer, said, status
from tests.ops.real_rollouts import gsm8k_rollouts, gsm8k_tasks, stored

NAME = "llm_score_mapper"
ASK_ALL = "Task: {prompt}\nAnswer: {answer}\nSolution: {completion}\nScore: 0-10"


@pytest.fixture(autouse=True)
def quick_and_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses between tries; no proxy between here and here."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def by_length(prompt, _):
    """A judge who counts characters."""
    return said(f"Let me see {{...}}.\nScore: {len(prompt) % 11}")


def run(server, table, store=None, **args):
    ops = [{NAME: {"base_url": server.base_url, "model": "m", **args}}]
    return OperatorPipeline(ops, name="experience_ops", store=store).run(table)


@pytest.mark.slow
def test_real_solutions_are_scored_with_their_tasks(tmp_path):
    rows, tasks = gsm8k_rollouts(60), {task.task_id: task for task in gsm8k_tasks(60)}
    with Buffer(tmp_path / "buffer") as buffer, JudgeServer(by_length) as server:
        buffer.add_tasks(list(tasks.values()))
        buffer.append(rows)
        made = run(server, buffer.take(range(len(rows))), buffer, template=ASK_ALL, shape="add", weight=0.5)
    wanted = []
    for row in rows:
        task = tasks[row.task_id]
        question = task.messages[0]["content"]
        prompt = f"Task: {question}\nAnswer: {task.answer}\nSolution: {row.completion_text}\nScore: 0-10"
        wanted.append(len(prompt) % 11 / 10)
    scores = [json.loads(stats)["llm_score"] for stats in made["stats"].to_pylist()]
    assert scores == pytest.approx(wanted, abs=1e-6)
    shaped = [row.reward + 0.5 * score for row, score in zip(rows, wanted, strict=True)]
    assert made["shaped_reward"].to_pylist() == pytest.approx(shaped, abs=1e-6)
    assert set(made["verdict"].to_pylist()) == {"kept"}


@pytest.mark.slow
def test_a_second_run_with_the_cache_asks_nothing(tmp_path):
    table = stored(gsm8k_rollouts(20))
    cache = str(tmp_path / "judge.db")
    with JudgeServer(by_length) as server:
        first = run(server, table, cache=cache)
        asked = len(server.requests)
        again = run(server, table, cache=cache)
        assert len(server.requests) == asked <= 40
    assert again["stats"].to_pylist() == first["stats"].to_pylist()


@pytest.mark.slow
def test_failed_rows_are_quarantined_without_asking_again():
    rows = gsm8k_rollouts(20)
    bad = {rows[3].completion_text, rows[17].completion_text, rows[30].completion_text}

    def answer(prompt, _):
        if any(text in prompt for text in bad):
            return status(400) if rows[3].completion_text in prompt else said("I cannot say")
        return said("Score: 5")

    with JudgeServer(answer) as server:
        made = run(server, stored(rows))
    verdicts = made["verdict"].to_pylist()
    assert [place for place, verdict in enumerate(verdicts) if verdict == "quarantined"] == [3, 17, 30]
    assert made["reason"][3].as_py().startswith("llm_score_mapper: ValueError: status 400")
    assert "holds no score: 'I cannot say'" in made["reason"][17].as_py()
    assert len(server.requests) == 40


@pytest.mark.slow
def test_failed_rows_may_be_kept_without_a_score():
    rows = gsm8k_rollouts(5)

    def answer(prompt, _):
        return said("no idea") if rows[2].completion_text in prompt else said("Score: 10")

    with JudgeServer(answer) as server:
        made = run(server, stored(rows), on_failure="keep", shape="replace", weight=2.0)
    stats = [json.loads(stats) for stats in made["stats"].to_pylist()]
    assert stats[0] == {"llm_score": 1.0, "llm_score_error": None}
    assert stats[2]["llm_score"] is None
    assert "holds no score" in stats[2]["llm_score_error"]
    assert made["shaped_reward"].to_pylist() == [2.0, 2.0, None, *[2.0] * 7]


def rows_of(**columns):
    return pa.table({"completion_text": ["x", "y {prompt} z"], **columns})


def asked_of(operator, table, template):
    with JudgeServer(lambda *_: said("Score: 1")) as server:
        operator(NAME, base_url=server.base_url, model="m", template=template).process_table(table)
    return sorted(body["messages"][0]["content"] for body in server.requests)


@pytest.mark.slow
def test_columns_fill_the_template_once(operator):
    table = rows_of(prompt=["p {completion}", "q"], answer=["a", "b"])
    got = asked_of(operator, table, 'As JSON {"score": 1}: {prompt}|{completion}|{answer}')
    assert got == ['As JSON {"score": 1}: p {completion}|x|a', 'As JSON {"score": 1}: q|y {prompt} z|b']


@pytest.mark.slow
def test_conversations_are_shown_with_their_roles(operator):
    turns = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image_url"}]},
        {"role": "assistant", "content": "x"},
    ]
    table = rows_of(messages=[json.dumps(turns), json.dumps(turns[1:])], prompt_messages=[2, 1])
    assert asked_of(operator, table, "{prompt}/{completion}") == [
        "hello/y {prompt} z",
        "system: be brief\n\nuser: hello/x",
    ]


@pytest.mark.slow
def test_a_task_without_an_answer_fails_its_rows_only(operator):
    table = rows_of(prompt=["p", "q"], answer=["a", None])
    with JudgeServer(lambda *_: said("Score: 3")) as server:
        args = {"base_url": server.base_url, "model": "m", "template": "{completion} {answer}"}
        op = operator(NAME, **args, on_failure="keep")
        out = op.process_table(table)
        assert len(server.requests) == 1
    assert out["llm_score"].to_pylist() == [pytest.approx(0.3), None]
    assert out["llm_score_error"].to_pylist() == [None, "the task has no answer"]
    assert "shaped_reward" not in out.column_names


@pytest.mark.slow
def test_json_scores_and_sampling_pass_through(operator):
    with JudgeServer(lambda *_: said('{"grade": 2}')) as server:
        op = operator(
            NAME,
            base_url=server.base_url,
            model="m",
            template="{completion}",
            score={"json_key": "grade", "low": 1, "high": 3},
            sampling={"response_format": {"type": "json_object"}, "max_tokens": 8},
        )
        out = op.process_table(rows_of())
    assert out["llm_score"].to_pylist() == [0.5, 0.5]
    sent = server.requests[0]
    assert (sent["response_format"], sent["max_tokens"], sent["temperature"]) == (
        {"type": "json_object"},
        8,
        0.0,
    )


@pytest.mark.slow
def test_data_juicers_own_front_doors_score_the_same(operator):
    from datasets import Dataset

    with JudgeServer(by_length) as server:
        op = operator(NAME, base_url=server.base_url, model="m", template="{completion}")
        wanted = op.process_table(rows_of()).to_pydict()
        assert op.run(Dataset(rows_of())).to_dict() == wanted
        assert op.process(rows_of().to_pydict()) == wanted


def test_no_rows_ask_nothing(operator):
    op = operator(NAME, base_url="http://127.0.0.1:9/v1", model="m", template="{completion}")
    assert op.process_table(rows_of().slice(0, 0))["llm_score"].to_pylist() == []


def test_what_cannot_work_is_refused(operator):
    args = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    for change, message in [
        ({"template": "{prompt}"}, "template has no {completion}"),
        ({"shape": "multiply"}, "shape is 'multiply'"),
        ({"weight": float("inf")}, "weight is inf"),
        ({"base_url": "ftp://x"}, "base_url is 'ftp://x'"),
    ]:
        with pytest.raises(ValueError, match=message):
            operator(NAME, **{**args, **change})
    for change, message in [
        ({"limits": {"retrys": 1}}, "retrys"),
        ({"score": {"low": 2, "high": 1}}, "low < high"),
    ]:
        with pytest.raises(RecipeError, match=message):
            OperatorPipeline([{NAME: {**args, **change}}], name="experience_ops")
    with pytest.raises(ValueError, match="neither 'messages' nor 'prompt'"):
        operator(NAME, **args).process_table(rows_of())
    with pytest.raises(OperatorError, match="has no store"):
        operator(NAME, **args, template="{completion}{answer}").process_table(rows_of())
    with pytest.raises(RecipeError, match="reads stored rows of a buffer"):
        OperatorPipeline([{NAME: {**args, "template": "{completion}{answer}"}}], name="experience_ops")


@pytest.mark.slow
def test_the_key_is_in_no_stored_reason(monkeypatch: pytest.MonkeyPatch, experiences):
    monkeypatch.setenv("RFT_TEST_JUDGE_KEY", "sk-S3CRET\n")
    table = experiences(["g", "g"], [1.0, 0.0])

    def echo(*_):
        return 401, f"wrong key: {server.headers[-1]['Authorization']}".encode(), {}

    args = {"template": "{completion}", "api_key_env": "RFT_TEST_JUDGE_KEY", "limits": {"retries": 0}}
    with JudgeServer(echo) as server:
        made = run(server, table, **args)
    assert made["reason"].to_pylist() == [f"{NAME}: ValueError: status 401: wrong key: Bearer ***"] * 2
    with JudgeServer(lambda *_: said("your key is sk-S3CRET")) as server:
        made = run(server, table, **args)
    assert "your key is ***" in made["reason"][0].as_py()


@pytest.mark.slow
def test_a_batch_that_took_long_is_searched_without_asking_again(
    monkeypatch: pytest.MonkeyPatch, experiences
):
    clock = [0.0]
    monkeypatch.setattr(judge_client, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def answer(*_):
        clock[0] += 50.0
        return status(400)

    with JudgeServer(answer) as server:
        table = experiences(["g"] * 8, [1.0] * 8)
        made = run(server, table, template="{completion}", limits={"concurrency": 1})
    assert made["verdict"].to_pylist() == ["quarantined"] * 8
    assert len(server.requests) == 8


@pytest.mark.slow
def test_adding_to_a_reward_needs_one(experiences):
    table = experiences(["g"], [1.0]).drop_columns(["reward"])
    with JudgeServer(lambda *_: said("Score: 5")) as server:
        with pytest.raises(OperatorError, match="needs column 'reward'"):
            run(server, table, template="{completion}", shape="add")
        assert server.requests == []
        made = run(server, table, template="{completion}", shape="replace")
    assert made["shaped_reward"].to_pylist() == [0.5]
