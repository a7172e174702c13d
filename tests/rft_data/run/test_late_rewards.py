"""Rewards that come as feedback while a run goes on: what a recipe may say, and a whole run of it."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from explorers.limits import recipe_limits
from explorers.rewards.scoring import make_rewards
from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.core.words import HubRole
from rft_data.placement.hub.access import make_token
from rft_data.placement.hub.client import HUB_TOKEN
from rft_data.recipe import load_recipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.run.assembly import online_parts
from rft_data.run.folder import Run
from rft_data.run.hub_file import HUB_FILE
from rft_data.run.start import run_recipe
from rft_data.sampler.awaiting import Awaiting, Delayed
from rft_data.sampler.conservation import conservation
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.tasks.selectors.make import make_selector
from rft_data.web.app import make_app
from rft_data.web.subjects import Subjects
from rft_data.weights.checkpoint import newest
from tests.ports import free_port
from tests.rft_data.run.test_online import write_recipe
from tests.waiting import wait_for

LATE = ["rewards.wait_s=600", "sync.max_staleness=1"]
JOIN = "  - feedback_mapper: {}\n  - reward_range_filter"


def late_recipe(root: Path) -> Path:
    path = write_recipe(root, steps=2)
    text = path.read_text().replace("  - reward_range_filter", JOIN)
    text = text.replace("[{use: exact_answer}]", "[{use: exact_answer}, {use: later}]")
    path.write_text(re.sub(r"  - algorithm: sft\n.*\n", "", text))
    return path


@pytest.mark.slow
def test_a_recipe_that_waits_joins_feedback_and_is_not_synchronous(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"put 'feedback_mapper: \{\}' first"):
        load_recipe(write_recipe(tmp_path), LATE)
    path = late_recipe(tmp_path)
    with pytest.raises(RecipeError, match=r"'sync\.max_staleness' of at least 1"):
        load_recipe(path, ["rewards.wait_s=600"])
    assert load_recipe(path, LATE).feedback_join == {}


@pytest.mark.slow
def test_a_run_that_waits_needs_a_token_for_those_who_give_feedback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HUB_TOKEN, raising=False)
    recipe = load_recipe(late_recipe(tmp_path), LATE)
    with closing(Run(recipe)) as run, ExitStack() as opened:
        roles = online_parts(recipe, run).roles
        with pytest.raises(RecipeError, match=f"environment variable {HUB_TOKEN}"):
            roles.open(opened)
        monkeypatch.setenv(HUB_TOKEN, "a-secret")
        roles.open(opened)


@pytest.mark.slow
def test_the_wait_and_the_join_are_the_recipes(tmp_path: Path) -> None:
    path = late_recipe(tmp_path)
    path.write_text(
        path.read_text().replace("feedback_mapper: {}", "feedback_mapper: {key: rating, how: mean}")
    )
    assert awaiting(load_recipe(path, LATE))._delayed == Delayed(600.0, "rating", "mean")
    assert awaiting(load_recipe(write_recipe(tmp_path))) is None


def awaiting(recipe: OnlineRecipe) -> Awaiting | None:
    with closing(Run(recipe)) as run:
        return online_parts(recipe, run).rl.closer.awaiting


def test_a_reward_that_comes_later_is_missing_without_a_reason() -> None:
    rewards = make_rewards([{"use": "exact_answer"}, {"use": "later"}], recipe_limits({}, 1))
    task = Task("sums", ({"role": "user", "content": "1+1="},), "2")
    [columns] = rewards.score_all([(task, "#### 2")])
    assert columns == {"reward": None, "reward_parts": {"exact_answer": 1.0}, "unscored_reason": None}


def retire_a_task(root: Path) -> None:
    """Through the page, beside the run, which it finds by its folder."""
    wait_for(lambda: (root / "run" / HUB_FILE).is_file())
    with Subjects([str(root / "run")]) as subjects:
        page = TestClient(make_app(subjects, "ann", "form"), follow_redirects=False)
        wait_for(lambda: 'href="/s/run/rows/' in page.get("/s/run/experiences").text)
        said = page.post("/s/run/rows/0/word", data={"act": "retire", "form_token": "form"})
        assert said.status_code == 303, said.text


@pytest.mark.slow
def test_a_run_trains_on_rewards_that_another_process_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv(HUB_TOKEN, "a-secret")
    all_kept = (
        "experience_ops=[{feedback_mapper: {}}, {reward_range_filter: {}}, {grpo_advantage_mapper: {}}]"
    )
    changes = [*LATE, f"rewards.port={port}", "evaluation.limit=2", all_kept]
    recipe = load_recipe(late_recipe(tmp_path), changes)
    root = Path(__file__).parents[3]
    own = {HUB_TOKEN: make_token("a-secret", HubRole.FEEDBACK, "x"), "PYTHONPATH": str(root)}
    rater = [sys.executable, root / "recipes" / "rater.py", f"hub://127.0.0.1:{port}"]
    with ThreadPoolExecutor(1) as page, ExitStack() as ending:

        def people() -> None:
            retire_a_task(tmp_path)
            rating = ending.enter_context(subprocess.Popen(rater, env={**os.environ, **own}))
            ending.callback(rating.kill)

        said = page.submit(people)
        summary = run_recipe(recipe)
        said.result()
    assert summary["rows"]["trained"] == 2 * 4 * 4
    assert summary["rows"]["unscored"] == 0
    with Buffer(tmp_path / "run" / "buffer") as buffer:
        stored = buffer.read("experiences", ["reward", "source"]).to_pylist()
        assert {row["reward"] for row in stored if row["source"] == "rollout"} == {None}
        assert conservation(buffer, Ledger(buffer, "small", 0), CONSUMER).residual == 0
        tasks = buffer.tasks("train")
    assert not (tmp_path / "run" / HUB_FILE).exists()
    at_the_end = newest(tmp_path / "run" / "checkpoints")
    assert at_the_end is not None
    selector = make_selector("difficulty", {}, tasks, 0)
    selector.load_state_dict(at_the_end.state["selector"])
    assert selector.in_play == len(tasks) - 1, "one was retired through the page"
