"""The sandbox of a run's explorers, for rewards and tools that run programs which the model wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from explorers.rewards.registry import REWARDS
from explorers.sandbox.probe import Choice, choose
from rft_data.recipe.sections import ExplorerSection


class Remembers(Protocol):
    """The holder of the place where programs run: a run."""

    sandbox: Choice | None


@dataclass(slots=True)
class SandboxPlace:
    """Remembers it where there is no run."""

    sandbox: Choice | None = None


PYTHON_TOOL = "explorers.sandbox.python_tool:PythonTool"


def rewards_in_sandbox(section: ExplorerSection, run: Remembers) -> list[dict[str, object]]:
    """The rewards of a section as plans have them; those that run programs are told in which sandbox.

    What was chosen, and why others were not, is noted in `run.sandbox`.
    Raises: SandboxError if there is such a reward, and no sandbox holds here.
    """
    found = [reward.model_dump() for reward in section.reward]
    for one in found:
        if getattr(REWARDS.get(one["use"]), "runs_programs", False):
            one["args"] = {**one["args"], "sandbox": _chosen(section, run)}
    return found


def workflow_in_sandbox(section: ExplorerSection, run: Remembers, workflow: dict[str, Any]) -> dict[str, Any]:
    """A workflow as plans have it; PythonTool among its tools is told in which sandbox programs run."""
    args = workflow["args"]
    if PYTHON_TOOL not in (workflow["use"], args.get("tools")):
        return workflow
    own = {**(args.get("args") or {}), "sandbox": _chosen(section, run)}
    return {**workflow, "args": {**args, "args": own}}


def _chosen(section: ExplorerSection, run: Remembers) -> str:
    if run.sandbox is None:
        run.sandbox = choose(section.sandbox)
    return str(run.sandbox.kind)
