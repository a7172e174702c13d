"""The server that programs and users speak to, and whether it can stand before the recipe's engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from explorers.engines.make import can_be_served
from explorers.workflows.server_settings import VLLM, server_settings
from rft_data.core.errors import RftError
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.tree import Tree, value
from rft_data.recipe.section import Loc

_SERVED = ("program", "served")
"""Workflows that have a server; a workflow of one's own may call something else so."""


def served_problems(tree: Tree) -> Iterator[Problem]:
    """A server that there is not, or that the engine or the model cannot have."""
    for loc, workflow in _workflows(tree):
        server = value(workflow, "args", "server")
        if server is None or value(workflow, "use") not in _SERVED:
            continue
        try:
            if server_settings(server)[0] == VLLM:
                _check(tree)
        except RftError as err:
            yield Problem((*loc, "args", "server"), str(err))


def _check(tree: Tree) -> None:
    engine, path = value(tree, "explorer", "engine"), value(tree, "model", "path")
    if isinstance(engine, Mapping) and isinstance(engine.get("use"), str):  # others are refused elsewhere
        can_be_served(engine, Path(path if isinstance(path, str) else ""))


def _workflows(tree: Tree) -> Iterator[tuple[Loc, object]]:
    yield ("explorer", "workflow"), value(tree, "explorer", "workflow")
    others = value(tree, "explorer", "workflows")
    for name, one in others.items() if isinstance(others, Mapping) else ():
        yield ("explorer", "workflows", str(name)), one
