"""Tasks: what a run's selector knew of them, who drew them, what they come from, how they are retired."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import Task
from rft_data.tasks.selectors.make import make_selector
from rft_data.web.app import make_app
from rft_data.web.subjects import Subjects
from rft_data.web.task_map import task_map
from rft_data.web.templates import STATIC
from tests.rft_data.run.rejudge.explored import explore
from tests.rft_data.web.conftest import FORM_TOKEN

ALL_LEVELS = [[1.0] * passed + [0.0] * (8 - passed) for passed in range(9)]
"""Nine tasks of eight rollouts, one for each share that has a shade."""


def tasks() -> list[Task]:
    return [
        Task("arith", ({"role": "user", "content": f"question {n}"},), str(n), difficulty=float(n % 3))
        for n in range(len(ALL_LEVELS))
    ]


def observed(use: str):
    """A selector that has seen the groups twice."""
    selector = make_selector(use, {}, tasks(), 7)
    for _ in range(2):
        results = [
            GroupResult(Ticket(str(n), n, 0), task.key, tuple(rewards), "arrived", 0)
            for n, (task, rewards) in enumerate(zip(tasks(), ALL_LEVELS, strict=True))
        ]
        selector.observe(results)
    return selector


def run_dir(folder: Path, use: str, *, curated: bool = False) -> Path:
    recipe = {
        "name": "run",
        "mode": "online",
        "run_dir": str(folder / "run"),
        "selector": {"use": use, "args": {}},
        "seed": 7,
        "tasks": [{"name": "arith"}],
    }
    (folder / "run").mkdir()
    (folder / "run" / "recipe.json").write_text(json.dumps(recipe))
    with Buffer(folder / "run" / "buffer") as buffer:
        every = tasks()
        buffer.add_tasks(every)
        explore(buffer, ALL_LEVELS, tasks=every, operators=[{"grpo_advantage_mapper": {}}])
        start = {"run_id": "run", "recipe": recipe, "recipe_hash": "", "code_version": "", "attempt": 0}
        buffer.add_rows("runs", [start])
        state = observed(use).state_dict()
        if curated:
            state = {"selector": state, "retired": [["arith", every[0].task_id]], "added": [], "tried": []}
        buffer.add_rows("task_state", [{"run_id": "run", "step": 4, "selector": state}])
    return folder / "run"


def shown(page: TestClient, path: str, **query: str) -> str:
    answer = page.get(path, params=query or None)
    assert answer.status_code == 200, answer.text
    return html.unescape(answer.text)


@pytest.mark.slow
def test_every_share_of_solved_rollouts_has_its_own_shade(tmp_path: Path) -> None:
    with Buffer(tmp_path / "buffer") as buffer:
        explore(buffer, ALL_LEVELS, operators=[{"grpo_advantage_mapper": {}}])
        found = task_map(buffer, "run")
    levels = {line.task_id: [cell.level for cell in line.cells] for line in found.lines}
    assert levels == {f"t{n}": [n] for n in range(9)}
    style = (STATIC / "page.css").read_text()
    shades = [float(value) for value in re.findall(r"\.p\d \{ fill-opacity: ([\d.]+)", style)]
    assert len(shades) == len(ALL_LEVELS)
    assert shades == sorted(set(shades)), "the darker, the more"


@pytest.mark.slow
@pytest.mark.parametrize("use", ["difficulty", "learnability", "mopps"])
def test_the_posterior_is_the_selectors_own(tmp_path: Path, use: str) -> None:
    curated = use == "learnability"
    folder = run_dir(tmp_path, use, curated=curated)
    own = observed(use)
    with Subjects([str(folder)]) as subjects:
        page = TestClient(make_app(subjects, "ann", FORM_TOKEN), follow_redirects=False)
        overview = shown(page, "/s/run/tasks")
        for task, rewards in zip(tasks(), ALL_LEVELS, strict=True):
            [shape] = own.posterior([task.key])
            assert shape is not None
            alpha, beta = shape
            mean = alpha / (alpha + beta)
            line = re.search(rf"<code>{task.task_id[:8]}</code>.*?</tr>", overview, re.DOTALL)
            assert line is not None
            assert f"{mean:.4g} ± " in line[0]
            text = shown(page, "/s/run/task", taskset="arith", task_id=task.task_id)
            assert f"{mean:.4g} ± " in text
            assert f"Beta({alpha:.4g}, {beta:.4g})" in text
            assert abs(mean - sum(rewards) / 8) < 0.25
            assert ("operators over tasks" in text) == (curated and task == tasks()[0])
    assert own.posterior([replace(tasks()[0], answer="another").key]) == [None]


@pytest.mark.slow
def test_a_selector_without_posteriors_says_so(tmp_path: Path) -> None:
    with Subjects([str(run_dir(tmp_path, "shuffle"))]) as subjects:
        page = TestClient(make_app(subjects, None, FORM_TOKEN))
        assert "no posterior: this selector keeps no posterior" in shown(page, "/s/run/tasks")
        task = tasks()[3]
        text = shown(page, "/s/run/task", taskset="arith", task_id=task.task_id)
        assert re.search(r"<td>run</td><td>shuffle</td><td class=\"n\"><a href=\"[^\"]+\">3</a>", text)
        assert "Retire it" not in text, "this page only shows"
        assert page.get("/s/run/task?taskset=arith&task_id=none").status_code == 404


@pytest.mark.slow
def test_a_task_is_retired_brought_back_and_shows_its_family(tmp_path: Path) -> None:
    folder = run_dir(tmp_path, "difficulty")
    parent = tasks()[2]
    with Buffer(folder / "buffer") as buffer:
        rows = buffer.read("experiences", ["experience_id", "task_id", "seq"]).to_pylist()
        row = next(one for one in rows if one["task_id"] == parent.task_id)
        variant = replace(tasks()[2], answer="variant", parent_experience_id=row["experience_id"])
        buffer.add_tasks([variant])
    with Subjects([str(folder)]) as subjects:
        page = TestClient(make_app(subjects, "ann", FORM_TOKEN), follow_redirects=False)
        named = {"taskset": "arith", "task_id": parent.task_id}
        text = shown(page, "/s/run/task", **named)
        assert f"task_id={variant.task_id}" in text
        made = shown(page, "/s/run/task", taskset="arith", task_id=variant.task_id)
        assert f'href="/s/run/rows/{row["seq"]}"' in made
        assert f"task_id={parent.task_id}" in made
        form = {**named, "act": "retire", "text": "leaked", "form_token": FORM_TOKEN}
        assert page.post("/s/run/task", data={**form, "form_token": "x"}).status_code == 403
        assert page.post("/s/run/task", data={**form, "task_id": variant.task_id}).status_code == 400
        answer = page.post("/s/run/task", data=form)
        assert answer.status_code == 303
        text = shown(page, answer.headers["location"])
        assert '<span class="state">retired</span>' in text
        assert "leaked" in text
        assert "selector difficulty no longer draws the task" in text
        every = shown(page, "/s/run/tasks")
        line = re.search(rf"<code>{parent.task_id[:8]}</code>.*?</tr>", every, re.DOTALL)
        assert line is not None
        assert "retired by people" in line[0]
        assert page.post("/s/run/task", data={**form, "act": "bring_back"}).status_code == 303
        assert '<span class="state">retired</span>' not in shown(page, "/s/run/task", **named)
