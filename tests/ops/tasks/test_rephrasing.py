"""Variants from an endpoint: the question anew with its numbers, or none."""

from pathlib import Path

import numpy as np
import pytest

from ops.tasks.rephrasing import rephrased
from rft_data.buffer import Buffer
from rft_data.core.rows import Task
from rft_data.tasks.synthesis import make_synthesis, synthesise
from tests.ops.judge_server import JudgeServer, said, status
from tests.rft_data.conftest import make_experience

QUESTION = "Tom has 3 apples and buys 1,200 more. How many has he?"


def task(question: str = QUESTION) -> Task:
    return Task("t", ({"role": "system", "content": "s"}, {"role": "user", "content": question}), "1203")


def variants(server: JudgeServer, folder: Path, **args: object) -> list[Task]:
    rng = np.random.default_rng(0)
    cache = str(folder / "replies.sqlite3")
    return rephrased(task(), [], rng, base_url=server.base_url, model="m", cache=cache, **args)


@pytest.mark.slow
def test_a_reply_with_the_same_numbers_is_a_variant_and_is_asked_for_once(tmp_path: Path):
    text = "How many apples has Tom after he adds 1200 to his 3?"
    with JudgeServer(lambda prompt, number: said(f" {text}\n")) as server:
        [made] = variants(server, tmp_path)
        assert made.messages == (task().messages[0], {"role": "user", "content": text})
        assert made.answer == "1203"
        assert variants(server, tmp_path) == [made], "a run that is continued makes the same again"
        assert len(server.requests) == 1
        assert QUESTION in server.requests[0]["messages"][0]["content"]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", QUESTION, "How many are 4 and 1200 apples?", "Many apples?"])
def test_a_reply_that_is_no_variant_makes_none(tmp_path: Path, text: str):
    with JudgeServer(lambda prompt, number: said(text)) as server:
        assert variants(server, tmp_path) == []


@pytest.mark.slow
def test_an_endpoint_that_refuses_costs_its_task_only(tmp_path: Path):
    tasks = [task(), task("Anna has 5 pears. How many?")]

    def answer(prompt: str, number: int) -> tuple:
        return status(400) if "Tom" in prompt else said("How many pears has Anna, given her 5?")

    with JudgeServer(answer) as server, Buffer(tmp_path / "buffer") as buffer:
        for n, asked in enumerate(tasks):
            buffer.append([make_experience(n, taskset="t", task_id=asked.task_id)])
        args = {"base_url": server.base_url, "model": "m", "cache": str(tmp_path / "replies.sqlite3")}
        made = synthesise(
            tasks, buffer, make_synthesis("ops.tasks.rephrasing:rephrased", args, parents=2), (0,)
        )
    assert [new.messages[1]["content"] for new in made.tasks] == ["How many pears has Anna, given her 5?"]
    assert list(made.failures) == [tasks[0].key]
    assert "status 400" in made.failures[tasks[0].key]
