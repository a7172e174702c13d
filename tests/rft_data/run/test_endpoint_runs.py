"""Runs on a model behind an endpoint: measured, its answers collected, and what may be trained on them."""

from __future__ import annotations

import json
import math
import re
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.cli.lineage_text import lineage_text
from rft_data.core.errors import EndpointError, RecipeError
from rft_data.core.lookup import OWN_CODE
from rft_data.loop.closing import GroupCloser
from rft_data.reading.lineage import lineage
from rft_data.recipe import load_recipe
from rft_data.recipe.load import validate_recipe
from rft_data.recipe.sections import EngineSection
from rft_data.run import checks
from rft_data.run.conductor import conduct
from rft_data.run.control import RunControl
from rft_data.run.deep_check import deep_problems
from rft_data.run.outlook.contacts import contacts
from rft_data.run.start import run_recipe
from tests.explorers.engines.chat_server import ChatServer, completion
from tests.explorers.engines.test_openai_engine import quick_and_direct
from tests.ops.judge_server import Answer, status
from tests.rays import ray_for
from tests.rft_data.run.test_modes import COMMON, EVAL, EXPLORE, MODEL, OPERATORS, STAGE, TASKS, TRAIN
from tests.rft_data.run.test_program_run import AGENT

__all__ = ["quick_and_direct"]


def recipe(
    root: Path,
    template: str,
    name: str,
    mode: str,
    url: str,
    *,
    change: tuple[str, str] = ("", ""),
    options: str = "",
    **values: object,
) -> Any:
    """A recipe whose explorer asks the model `teacher/one` at `url`, with a text changed."""
    engine = (
        f"engine: {{use: openai, options: {{base_url: '{url}', price: {{input: 1, output: 2}}{options}}}}}"
    )
    tasks = TASKS.replace("engine: {use: transformers, max_model_len: 64}", engine)
    parts = {"model": "model: {path: teacher/one}\n", "tasks": tasks, "operators": OPERATORS, "stage": STAGE}
    path = root / f"{name}.yaml"
    text = template.format(root=root, name=name, mode=mode, **{**parts, **values})
    assert change[0] in text
    path.write_text(text.replace(*change) if change[0] else text)
    return load_recipe(path)


def adds(body: dict[str, Any], number: int) -> Answer:
    """The sum; `poor` is one off."""
    [(left, sign, right)] = re.findall(r"(\d+) ([+-]) (\d+)", body["messages"][-1]["content"])
    return completion(content=f"#### {int(left) + int(sign + right) + (body['model'] == 'poor')}")


@pytest.mark.slow
def test_models_at_an_endpoint_are_measured_by_name(tmp_path: Path) -> None:
    tasks = {"models": "good', 'poor"}
    with ChatServer(adds) as server:
        loaded = recipe(tmp_path, EVAL, "measuring", "eval", server.base_url, change=EXACT, **tasks)
        measured = run_recipe(loaded)
    assert measured["heldout_accuracy"] == {"good": 1.0, "poor": 0.0}
    assert {body["model"] for body in server.requests} == {"good", "poor"}
    assert {body["temperature"] for body in server.requests} == {0.0}
    assert (measured["endpoint"]["endpoint_calls"], measured["endpoint"]["endpoint_cost"]) == (
        8,
        pytest.approx(8 * 13e-6),
    )
    with Buffer(tmp_path / "buffer") as buffer:
        rows = buffer.read("experiences", ["source", "sampling"]).to_pylist()
    assert [json.loads(row["sampling"])["endpoint"]["model"] for row in rows] == ["good"] * 4 + ["poor"] * 4


@pytest.mark.slow
def test_a_teachers_answers_are_stored_and_an_interrupted_group_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def dying(*_: object) -> None:
        raise Killed

    told: list[str] = []
    monkeypatch.setattr(RunControl, "progress", lambda _, text, *of: told.append(text))
    template = EXPLORE + "checkpoint_every: 1\n"
    with ChatServer(adds) as server:
        loaded = recipe(tmp_path, template, "looking", "explore", server.base_url, groups=3)
        with monkeypatch.context() as patched:
            patched.setattr(GroupCloser, "judge", dying)
            with pytest.raises(Killed):
                run_recipe(loaded)
        explored = run_recipe(loaded)
    assert explored["groups"]["ready"] == 3
    assert explored["endpoint"]["endpoint_calls"] == 4.0, "since this start"
    assert re.fullmatch(
        r"3 of 3 groups, (2 calls, 20 tokens, cost 2.6|4 calls, 40 tokens, cost 5.2)e-05", told[-1]
    ), told
    with Buffer(tmp_path / "buffer") as buffer:
        rows = buffer.read("experiences", ["token_ids", "logprobs", "version_min", "messages"]).to_pylist()
        groups = buffer.read("groups", ["outcome", "version_min"]).to_pylist()
        assert f"sampled   by teacher/one at {server.base_url}" in lineage_text(lineage(buffer, 0))
        [version] = buffer.read("versions", ["path"]).to_pylist()
        train = recipe(tmp_path, TRAIN, "learning", "train", server.base_url)
        with pytest.raises(RecipeError, match=r"run 'looking' has rollouts .* behind an endpoint"):
            checks._check_sampled_by_weights(train, buffer)
    assert [(row["token_ids"], row["logprobs"], row["version_min"]) for row in rows] == [(None,) * 3] * 6
    assert groups == [{"outcome": "arrived", "version_min": 0}] * 3
    named = json.loads((tmp_path / "looking" / "weights" / version["path"] / "endpoint.json").read_text())
    assert named == {"base_url": server.base_url, "name": "teacher/one"}


class Twofold:
    """Answers each question rightly at first, and wrongly the second time."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.lock = threading.Lock()

    def __call__(self, body: dict[str, Any], number: int) -> Answer:
        question = body["messages"][-1]["content"]
        with self.lock:
            self.asked[question] += 1
            right = self.asked[question] == 1
        return adds(body if right else {**body, "model": "poor"}, number)


EXACT = ("use: answer_format", "use: exact_answer")
BY_PROGRAM = (
    "  reward: [{use: answer_format}]",
    "  reward: [{use: exact_answer}]\n  workflow: {use: program, args: {command: [python, agent.py, asks]}}",
)
"""The program lies beside the recipe."""
OFFLINE = (
    COMMON
    + """{model}stages:
  - algorithm: sft
    data: {{min_reward: 1.0, sources: [rollout]}}
    trl: {{max_steps: 4, per_device_train_batch_size: 4, learning_rate: 3.0e-3}}
  - algorithm: dpo
    data: {{pairs: mined}}
    trl: {{max_steps: 4, per_device_train_batch_size: 4, learning_rate: 1.0e-3, beta: 0.1}}
"""
)


@pytest.mark.heavy
def test_answers_that_programs_on_ray_asked_for_are_imitated_and_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFT_TEST_KEY", "s3cret-key")
    monkeypatch.setenv(OWN_CODE, str(tmp_path / "elsewhere"))  # as of a cluster that an earlier run started
    shutil.copy(AGENT, tmp_path)
    template = EXPLORE + "placement: {{use: ray}}\n"
    given: dict[str, Any] = {"change": BY_PROGRAM, "options": ", api_key_env: RFT_TEST_KEY"}
    with (
        ChatServer(Twofold()) as server,
        ray_for(num_cpus=2, object_store_memory=256 << 20, log_to_driver=False),
    ):
        loaded = recipe(tmp_path, template, "looking", "explore", server.base_url, groups=4, **given)
        explored = conduct(loaded)
    assert explored["endpoint"]["endpoint_calls"] == len(server.requests) == 8
    assert {one["Authorization"] for one in server.headers} == {"Bearer s3cret-key"}
    with Buffer(tmp_path / "buffer") as buffer:
        groups = buffer.read("groups").to_pylist()
        rows = buffer.read("experiences", ["experience_id", "reward", "token_ids", "sampling"]).to_pylist()
    assert Counter(row["reward"] for row in rows) == {1.0: 4, 0.0: 4}, groups
    trained = run_recipe(recipe(tmp_path, OFFLINE, "learning", "offline", server.base_url, model=MODEL))
    sft, dpo = trained["stages"].values()
    assert (sft["examples"], dpo["examples"]) == (4, 4), trained
    assert sft["metrics"]["loss_last"] < sft["metrics"]["loss_first"]
    assert dpo["metrics"]["loss_last"] < dpo["metrics"]["loss_first"] == pytest.approx(math.log(2), abs=1e-3)
    stages = sorted((tmp_path / "learning" / "stages").glob("*/trained_on.jsonl"))
    imitated, preferred = ([json.loads(line) for line in one.read_text().splitlines()] for one in stages)
    right = {row["experience_id"] for row in rows if row["reward"] == 1.0}
    wrong = {row["experience_id"] for row in rows} - right
    assert [row["token_ids"] for row in rows] == [None] * 8
    assert "s3cret" not in "".join(row["sampling"] for row in rows)
    assert {one["experience_id"] for one in imitated} == right
    assert {one["chosen_experience_id"] for one in preferred} == right
    assert {one["rejected_experience_id"] for one in preferred} == wrong


@pytest.mark.slow
def test_an_endpoint_that_is_down_leaves_no_zero_in_an_evaluation(tmp_path: Path) -> None:
    def says(body: dict[str, Any], number: int) -> Answer:
        return completion(content="#### 1") if number == 0 else status(503)

    with ChatServer(says) as server:
        once = ("{base_url:", "{limits: {retries: 0}, base_url:")
        loaded = recipe(tmp_path, EVAL, "measuring", "eval", server.base_url, change=once, models="good")
        measured = run_recipe(loaded)
        assert measured["heldout_reward"]["good"]["reward"] == 1.0, "of the one that was answered"
        server._chat_answer = lambda *_: status(401)
        loaded = recipe(tmp_path, EVAL, "refused", "eval", server.base_url, models="good")
        with pytest.raises(EndpointError, match="refuses the model 'good'"):
            run_recipe(loaded)
    with Buffer(tmp_path / "buffer") as buffer:
        rows = buffer.read("experiences", ["reward", "unscored_reason"]).to_pylist()
    assert [row["reward"] for row in rows].count(None) == 3
    assert sum((row["unscored_reason"] or "").startswith("infrastructure: ") for row in rows) == 3


ONLINE = (
    COMMON + "{model}{tasks}{operators}selector: {{use: shuffle}}\nstages:\n{stage}evaluation: {{limit: 2}}\n"
)


@pytest.mark.parametrize(
    ("mode", "change", "message"),
    [
        ("online", ("", ""), "gives no token ids and no logprobs, which reinforcement needs"),
        ("explore", ("{base_url:", "{key: x, base_url:"), "options.key is no option"),
        (
            "explore",
            ("use: openai,", "use: openai, max_model_len: 64,"),
            "'max_model_len' is of engines with weights",
        ),
        ("explore", ("use: openai,", "use: openai, swap: continue,"), "'swap' is of engines with weights"),
        ("explore", ("path: teacher/one", "build: {use: tiny_qwen2}"), "'model.build' makes weights"),
    ],
)
def test_recipes_that_cannot_work_are_refused(
    tmp_path: Path, mode: str, change: tuple[str, str], message: str
) -> None:
    template = ONLINE if mode == "online" else EXPLORE
    path = tmp_path / "bad.yaml"
    with pytest.raises(RecipeError, match=re.escape(message)):
        recipe(tmp_path, template, "bad", mode, "http://h/v1", change=change, groups=2)
    assert change[1] in path.read_text()


@pytest.mark.slow
def test_names_of_models_at_an_endpoint_are_looked_for_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    wide = ("max_tokens: 8", "max_tokens: 4096")
    for name, template, values in (
        ("looking", EXPLORE, {"groups": 2}),
        ("measuring", EVAL, {"models": "teacher/one"}),
    ):
        mode = "explore" if template is EXPLORE else "eval"
        loaded = recipe(tmp_path, template, name, mode, "http://h:1/v1", change=wide, **values)
        assert validate_recipe(tmp_path / f"{name}.yaml", []).name == name
        assert deep_problems(loaded) == []
        assert contacts(loaded) == {"h:1": "explorer.engine.options.base_url"}


def test_an_engine_of_messages_is_none_of_several_engines_of_token_ids() -> None:
    with pytest.raises(ValueError, match="the engine 'routed' sends token ids, and 'openai' takes messages"):
        EngineSection(use="routed", options={"engines": [{"use": "openai"}]})
