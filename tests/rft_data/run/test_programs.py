"""What runs programs of the model is told in which sandbox, and only then one is looked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from explorers.sandbox.probe import Choice
from rft_data.core.errors import SandboxError
from rft_data.core.words import SandboxKind
from rft_data.recipe.sections import ExplorerSection
from rft_data.run.folder import Run
from rft_data.run.programs import PYTHON_TOOL, rewards_in_sandbox, workflow_in_sandbox


def section(**given: Any) -> ExplorerSection:
    base = {"engine": {"use": "transformers"}, "group_size": 2, "max_tokens": 8}
    return ExplorerSection.model_validate({**base, "reward": [{"use": "exact_answer"}], **given})


def run() -> Run:
    return cast("Run", SimpleNamespace(sandbox=None))


def test_nothing_is_chosen_where_no_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rft_data.run.programs.choose", lambda setting: pytest.fail("it was looked for"))
    of, started = section(), run()
    assert rewards_in_sandbox(of, started)[0]["use"] == "exact_answer"
    assert workflow_in_sandbox(of, started, of.workflow.model_dump()) == of.workflow.model_dump()
    assert started.sandbox is None


@pytest.mark.parametrize("given", [{"use": PYTHON_TOOL}, {"use": "tools", "args": {"tools": PYTHON_TOOL}}])
def test_the_tool_is_told_and_the_run_remembers(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    choice = Choice(SandboxKind.LANDLOCK, "auto", ("bubblewrap: it is not there.",))
    monkeypatch.setattr("rft_data.run.programs.choose", {"auto": choice}.__getitem__)
    of, started = section(workflow=given), run()
    plan = workflow_in_sandbox(of, started, of.workflow.model_dump())
    assert plan["args"]["args"] == {"sandbox": "landlock"}
    assert started.sandbox is choice


def test_the_code_reward_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = Choice(SandboxKind.BUBBLEWRAP, "auto")
    monkeypatch.setattr("rft_data.run.programs.choose", {"auto": choice}.__getitem__)
    code = {"use": "code_tests", "args": {"score": "share"}}
    of, started = section(reward=[code, {"use": "exact_answer"}]), run()
    first, second = rewards_in_sandbox(of, started)
    assert first["args"] == {"score": "share", "sandbox": "bubblewrap"}
    assert "sandbox" not in second["args"]
    assert started.sandbox is choice


def test_none_in_so_many_words_is_taken() -> None:
    of, started = section(sandbox="none", workflow={"use": PYTHON_TOOL}), run()
    assert workflow_in_sandbox(of, started, of.workflow.model_dump())["args"]["args"]["sandbox"] == "none"
    assert str(started.sandbox) == "no sandbox: programs run as this user, asked for none"


def test_a_run_is_refused_where_none_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorers.sandbox.probe.probe", lambda kind: "it does not hold.")
    of = section(workflow={"use": PYTHON_TOOL})
    with pytest.raises(SandboxError, match="no sandbox holds on this machine"):
        workflow_in_sandbox(of, run(), of.workflow.model_dump())
