"""The example of docs/extend.md is the recipe `extend`: each file is shown as it is; they run together."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from explorers.rewards.scoring import Rewards
from explorers.workflows.make import make_workflow
from ops.runtime.hygiene import registry
from ops.runtime.specs import Spec
from rft_data.buffer import Buffer
from rft_data.core.engine import Sampling
from rft_data.core.errors import RecipeError
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.lookup import load
from rft_data.core.rows import Task, TaskKey
from rft_data.core.words import GroupOutcome
from rft_data.core.workflow import RolloutContext
from rft_data.recipe.copying import copy_recipe
from rft_data.recipe.load import load_run_recipe
from rft_data.run.start import run_recipe
from rft_data.tasks.selectors.make import make_selector
from tests.docs.blocks import python_blocks
from tests.explorers.conversations.conftest import SayingEngine, trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.rft_data.sampler.memory import House
from tests.rft_data.tasks.selectors.pool import make_tasks
from trainers.policy.losses import LossContext, make_loss

NOUNS = ("dataset", "reward", "environment", "operator", "selector", "sampler", "loss", "algorithm")
TASK = Task("sums", ({"role": "user", "content": "How many are 3 and 1?"},), answer="4")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text()
PARTS = {path.name: path.read_text() for path in sorted((ROOT / "recipes" / "extend").glob("my_*.py"))}


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The recipe as `rft recipe copy extend` writes it, with its files, in the working directory."""
    monkeypatch.chdir(tmp_path)
    yield copy_recipe("extend", tmp_path)[0]
    registry().modules.pop("wordiness_mapper", None)


def test_every_part_is_shown_as_it_is_and_is_short() -> None:
    assert python_blocks("extend.md") == [PARTS[f"my_{noun}.py"] for noun in NOUNS]
    assert all(len(text.splitlines()) <= 40 for text in PARTS.values())


def test_the_lines_of_the_page_are_lines_of_the_recipe(copied: Path) -> None:
    written = {line.split(" #")[0].strip() for line in copied.read_text().splitlines()}
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    assert len(blocks) == 8
    assert [line for line in lines if line not in written] == ["- algorithm: grpo"]


@pytest.mark.slow
def test_the_parts_together_are_a_run(copied: Path) -> None:
    summary = run_recipe(load_run_recipe(copied, modes=["online"]))
    assert summary["groups"]["trained"] == 4
    assert summary["rows"]["trained"] == 16  # groups of four: the algorithm's size
    with Buffer("runs/extend/buffer", read_only=True) as buffer:
        parts = buffer.read("experiences", ["reward_parts"])["reward_parts"].to_pylist()
        assert all("./my_reward.py:last_number" in of_row for of_row in parts)
        assert buffer.read("annotations", ["shaped_reward"])["shaped_reward"].null_count == 0
        metrics = buffer.read("metrics", ["key", "value"]).to_pylist()
        assert {0 <= one["value"] <= 1 for one in metrics if one["key"] == "loss/outside"} == {True}


def test_the_environment_gives_a_second_try(copied: Path) -> None:
    workflow = make_workflow(
        {"use": "./my_environment.py:second_try", "args": {"args": {"tries": 2}}},
        tokenizer := trained_tokenizer(),
        Rewards({"right": 1.0}, {"right": load("./my_reward.py:last_number", "reward")}),
    )
    tokenizer.chat_template = QWEN25
    engine = SayingEngine(tokenizer, ["3<|im_end|>", "4<|im_end|>"])
    context = RolloutContext("run", "g", 0, 0, "e", "rollout", Sampling(64))
    (row,) = asyncio.run(workflow.run(TASK, engine, context))
    assert (row.reward, row.metadata["turns"]) == (1.0, 2)
    workflow.close()


def test_the_dataset_is_the_same_each_time(copied: Path) -> None:
    rows = load("./my_dataset.py:sums", "source")
    found = list(rows(3))
    assert found == list(rows(3))
    assert [int(str(row["answer"])) for row in found] == [sum(row["terms"]) for row in found]


def test_the_reward_is_of_the_last_number(copied: Path) -> None:
    reward = load("./my_reward.py:last_number", "reward")
    assert [reward(TASK, text) for text in ("3 or 4", "4 or 3", "four")] == [1.0, 0.1, 0.0]


def test_the_operator_takes_a_price_for_words(copied: Path) -> None:
    operator = Spec("./my_operator.py:Wordiness", {"free": 2, "cost": 0.25}).build("completion_text")
    table = pa.table({"reward": [1.0, 1.0, None], "completion_text": ["a b", "a b c d", "a b c"]})
    assert operator.process_table(table)["shaped_reward"].to_pylist() == [1.0, 0.5, None]
    with pytest.raises(RecipeError, match=r"cost is -1\.0; wanted 0 or more"):
        Spec("./my_operator.py:Wordiness", {"cost": -1.0}).build("completion_text")


def test_the_selector_goes_to_the_target_once_all_were_tried(copied: Path) -> None:
    tasks = make_tasks(1, 4)
    selector = make_selector("./my_selector.py:Nearest", {"target": 0.5}, tasks, 0)
    tried = selector.select(4)
    assert len(set(tried)) == 4
    means = dict(zip(tried, (0.0, 0.4, 1.0, 0.8), strict=True))
    tickets = [Ticket("r", place, 0) for place in range(4)]
    selector.observe(
        [
            result_of(ticket, task, (mean,))
            for ticket, (task, mean) in zip(tickets, means.items(), strict=True)
        ]
    )
    assert [means[task] for task in selector.select(2)] == [0.4, 0.8]
    again = make_selector("./my_selector.py:Nearest", {"target": 0.5}, tasks, 1)
    again.load_state_dict(selector.state_dict())
    assert again.select(4) == selector.select(4)


def test_the_policy_leases_the_hardest_first(copied: Path) -> None:
    house = House("./my_sampler.py:HardestFirst", groups=2, bound=1)
    for ticket, rewards in zip(
        house.sampler.admit(4, 0), [(1.0, 1.0), (0.0, 1.0), (None, 0.0), (0.5, 0.5)], strict=True
    ):
        house.close(ticket, rewards=rewards)
    assert house.train(0) == [2, 1]
    assert house.train(1) == [3, 0]


def test_the_loss_is_a_gate_with_a_metric(copied: Path) -> None:
    loss = make_loss("./my_loss.py:GATED", {"width": 0.5})
    assert loss.aggregation == "row_mean"
    logprobs = torch.tensor([[0.0, math.log(3.0)]], requires_grad=True)
    zeros = torch.zeros(1, 2)
    context = LossContext(logprobs, zeros, zeros, zeros + 2.0, zeros + 1, zeros, torch.tensor([False]))
    terms, measured = loss.with_metrics(context)
    assert terms[0].tolist() == pytest.approx([0.0, -math.tanh(4.0)])
    assert measured["outside"].tolist() == [[0.0, 1.0]]
    terms.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0, 0].item() == -2.0  # on policy: the policy gradient


def result_of(ticket: Ticket, task: TaskKey, rewards: tuple[float, ...]) -> GroupResult:
    """A group of the task that arrived."""
    return GroupResult(ticket, task, rewards, GroupOutcome.ARRIVED, 0, (1, 2))
