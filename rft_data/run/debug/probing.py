"""One task through a recipe's explorer, operators and loss: an online run of one step at learning rate 0.

It is made in a temporary folder, with every part real; nothing is written to the recipe's buffer or folder.
"""

from __future__ import annotations

import json
import resource
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, TrainingError
from rft_data.core.lookup import need
from rft_data.core.rows import Task
from rft_data.core.words import MetricRole
from rft_data.recipe.kinds import that_explores_and_trains
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.recipe import Recipe
from rft_data.run.debug.chosen import Prompt, played_model, played_tokenizer
from rft_data.run.debug.first_prompts import FirstPrompts
from rft_data.run.debug.playing import PlayedRow, scoring, stored_rows, task_section
from rft_data.run.folder import Progress
from rft_data.run.start import run_recipe

_KEPT = ("seed", "allow_unsafe_ops", "op_limits", "experience_ops", "placement", "deadlines")
_KILO = 1024


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of probing one task."""

    prompt: Prompt
    rows: Sequence[PlayedRow]
    """Every stored row, with what the operators said of it."""
    trained: Mapping[str, float]
    """Figures of the trainer for the group, like `loss`, `grad_norm`, `tokens`; empty without a loss."""
    no_loss: str
    """The reason that there is no loss; empty where there is one."""
    seconds: Mapping[str, float]
    """Wall seconds of each part."""
    memory: Mapping[str, int]
    """The most bytes that were in use at one time."""


def probed(recipe: OnlineRecipe, task: Task) -> Probe:
    """Play a task, judge it and compute the loss and its gradient; the weights stay as they are.

    Raises: what a run of the recipe raises; operators that drop every group are no error.
    """
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        model = played_model(recipe, root)
        no_loss = ""
        try:
            run_recipe(_one_step(recipe, task, model, root))
        except TrainingError as err:
            no_loss = str(err)
        tokenizer = played_tokenizer(recipe, model)
        with Buffer(root / "buffer", read_only=True) as buffer:
            rows = stored_rows(buffer, tokenizer)
            trained = _numbers(buffer, MetricRole.TRAINER)
            seconds = _numbers(buffer, MetricRole.SECONDS)
        if not rows:
            raise TrainingError(no_loss)
        progress = Progress(**json.loads((root / "run" / "progress.json").read_text()))
        with closing(FirstPrompts(recipe, tokenizer)) as prompts:
            prompt = prompts.prompt(task)
    return Probe(prompt, rows, trained, no_loss, {**progress.seconds, **seconds}, _memory())


def can_be_probed(recipe: Recipe) -> OnlineRecipe:
    """The recipe, if it explores and trains. Raises: RecipeError."""
    online = that_explores_and_trains(recipe)
    if online is None:
        raise RecipeError(
            f"recipe '{recipe.name}' has mode '{recipe.mode}', and a probe explores and computes a loss: "
            "give one of mode online; for rollouts alone: rft debug engine."
        )
    return online


def _one_step(recipe: OnlineRecipe, task: Task, model: str, root: Path) -> OnlineRecipe:
    """The recipe's explorers, operators and last stage on this task alone, for one step."""
    values = recipe.model_dump()
    placement = values["placement"]
    size = recipe.explorer.group_size
    return OnlineRecipe.model_validate(
        {
            **{key: values[key] for key in _KEPT},
            "recipe": 1,
            "mode": "online",
            "name": "probe",
            "run_dir": str(root / "run"),
            "buffer": {"uri": str(root / "buffer")},
            "model": {"path": model},
            "explorer": scoring(values["explorer"], task.taskset),
            "tasks": [task_section(task, root)],
            "selector": {"use": "shuffle"},
            "stages": [_stage(values["stages"][-1], groups=1 + size % 2, size=size)],
            "monitor": {"trackers": []},
            "placement": {
                **placement,
                "use": "local" if placement["use"] == "ray" else placement["use"],
                "explorers": {**placement["explorers"], "count": 1},
            },
        }
    )


def _stage(stage: dict[str, Any], *, groups: int, size: int) -> dict[str, Any]:
    """The stage for one step that changes nothing, with micro-batches no larger than the recipe's."""
    options = stage["trl"]
    micro = stage["groups_per_step"] * size // int(options.get("gradient_accumulation_steps", 1))
    rows = groups * size
    fitting = next(
        count for count in range(1, rows + 1) if rows % count == 0 and rows // count <= max(micro, 1)
    )
    critic = stage.get("critic")
    return {
        **stage,
        "groups_per_step": groups,
        "steps": 1,
        "checkpoint_every": 1,
        "critic": None if critic is None else {**critic, "learning_rate": 0.0},
        "trl": {**options, "learning_rate": 0.0, "gradient_accumulation_steps": fitting},
    }


def _numbers(buffer: Buffer, role: MetricRole) -> dict[str, float]:
    rows = buffer.read("metrics").to_pylist()
    return {row["key"]: row["value"] for row in rows if row["role"] == role}


def _memory() -> dict[str, int]:
    """Peaks of this process and its GPU, and of the largest process that it started."""
    found = {
        "this process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILO,
        "largest other process": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _KILO,
    }
    torch = need("torch", "train", "a probe")
    for card in range(torch.cuda.device_count()):
        found[f"GPU {card}, allocated by this process"] = torch.cuda.max_memory_allocated(card)
    return found
