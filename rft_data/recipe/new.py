"""A new recipe from a model, data and a goal: a commented file of `recipes/skeletons`, filled in."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rft_data.core.errors import RecipeError
from rft_data.recipe.copying import SCHEMA_FILE, SCHEMA_LINE, write_new
from rft_data.recipe.import_columns import ImportColumns
from rft_data.recipe.json_schema import schema_text
from rft_data.recipe.new_imports import import_entry
from rft_data.recipe.new_lengths import TINY_MODEL, engine_lengths
from rft_data.recipe.new_reward import OWN_REWARD
from rft_data.recipe.new_tasks import task_marks
from rft_data.recipe.shipped import shipped_folder
from rft_data.recipe.yaml_text import as_text, flow

TINY = "tiny"
"""In place of a model: a tiny one of random weights, built here."""
_OWN_REWARD = """\
\"\"\"How good an answer is; docs/rewards.md. Try it: rft debug reward RECIPE --completion TEXT --more\"\"\"


def score(task, completion):
    \"\"\"1.0 for the best answer, 0.0 for the worst; `task.metadata` has the columns of the dataset.\"\"\"
    raise NotImplementedError("say what a good answer is")
"""


class Goal(StrEnum):
    """Purpose of the recipe; also the skeleton's name."""

    GRPO = "grpo"
    """Reinforcement on tasks, by a reward."""
    DPO = "dpo"
    """Training on pairs of answers."""
    SFT = "sft"
    """Imitation of stored answers."""
    EVAL = "eval"
    """Measuring a model."""
    CURATE = "curate"
    """Cleaning tasks."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A person's answers from which a recipe is made."""

    goal: Goal
    data: str
    """A file, a dataset's folder or `hf://org/name:split`, as `rft buffer import` takes them; for tasks also
    `reasoning_gym:NAME` and `./file.py:function`."""
    model: str
    """A folder, a hub id, or `tiny`; not read for the goal `curate`."""
    prompt: str | None = None
    """Column of the prompt; None: found among the usual names."""
    answer: str | None = None
    """Column of the reference answer, or of that to imitate (sft); None: found among the usual names."""
    chosen: str | None = None
    """Column of the better answer (dpo); None: `chosen`."""
    rejected: str | None = None
    """Column of the worse answer (dpo); None: `rejected`."""


def write_recipe(wanted: Wanted, path: Path) -> None:
    """Write the recipe, and beside it the schema that editors check it with, and a reward where none fits.

    Raises: RecipeError for columns that cannot be told, or another file in the way; MissingFileError.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "run"
    texts = {
        "name: __NAME__": f"name: {as_text(name)}",
        "__NAME__": name,
        "__FILE__": path.name,
        "__DATA__": wanted.data,
        "__MODEL__": TINY_MODEL if wanted.model == TINY else flow({"path": wanted.model}),
        "__PATH__": json.dumps(wanted.model),
        **engine_lengths(wanted.model),
    }
    if wanted.goal is Goal.EVAL and wanted.model == TINY:
        raise RecipeError("a model built from a seed knows nothing to measure; give --model a folder.")
    texts |= _data(wanted, name)
    text = (shipped_folder() / "skeletons" / f"{wanted.goal}.yaml").read_text()
    for mark, value in texts.items():
        text = text.replace(mark, value)
    files = {
        path: SCHEMA_LINE + text,
        path.parent / SCHEMA_FILE: schema_text(),
    }
    own = path.parent / OWN_REWARD.partition(":")[0]
    if f'use: "{OWN_REWARD}"' in text and not own.exists():
        files[own] = _OWN_REWARD
    write_new(files)


def _data(wanted: Wanted, taskset: str) -> dict[str, str]:
    """The marks of a skeleton that stand for the data. Raises: as `write_recipe`."""
    if wanted.goal is Goal.SFT:
        if (wanted.prompt is None) != (wanted.answer is None):
            raise RecipeError(
                "goal sft takes --prompt with --answer, the answer to imitate; give both columns."
            )
        columns = ImportColumns(wanted.prompt, completion=wanted.answer)
        return {"__IMPORT__": import_entry(wanted.data, columns, taskset, "experiences")}
    if wanted.goal is Goal.DPO:
        if wanted.answer is not None:
            raise RecipeError(
                "goal dpo takes two answers of each row; in place of --answer give --chosen and --rejected."
            )
        columns = ImportColumns(wanted.prompt, chosen=wanted.chosen, rejected=wanted.rejected)
        return {"__IMPORT__": import_entry(wanted.data, columns, taskset, "preferences")}
    if wanted.chosen is not None or wanted.rejected is not None:
        raise RecipeError(
            f"--chosen and --rejected are for the goal dpo, and the goal is {wanted.goal}; leave them out."
        )
    return task_marks(wanted.data, wanted.prompt, wanted.answer)
