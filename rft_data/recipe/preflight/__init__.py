"""Mistakes in a recipe that its types do not show; nothing that it names is imported."""

from __future__ import annotations

from collections.abc import Iterator

from rft_data.recipe.preflight.arguments import argument_problems
from rft_data.recipe.preflight.columns import column_problems
from rft_data.recipe.preflight.devices import too_few_gpus
from rft_data.recipe.preflight.files import missing_files, unwritable_folders
from rft_data.recipe.preflight.model_files import model_problems
from rft_data.recipe.preflight.own_code import code_problems
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.row_files import row_problems
from rft_data.recipe.preflight.rules import broken_rules
from rft_data.recipe.preflight.tree import Tree
from rft_data.recipe.preflight.trl_options import trl_problems
from rft_data.recipe.preflight.vision import vision_problems

__all__ = ["Problem", "argument_problems", "broken_rules", "problems_here", "trl_problems"]


def problems_here(tree: Tree) -> Iterator[Problem]:
    """Settings that cannot work on this machine: files, import paths, options and arguments."""
    yield from missing_files(tree)
    yield from model_problems(tree)
    yield from column_problems(tree)
    yield from row_problems(tree)
    yield from unwritable_folders(tree)
    yield from code_problems(tree)
    yield from trl_problems(tree)
    yield from vision_problems(tree)
    yield from too_few_gpus(tree)
    yield from argument_problems(tree)
