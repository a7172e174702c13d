"""One run of the showcase: the quickstart, supervised stages alone, or the quickstart without a part."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.grid import rft_run
from benchmarks.run_code import run_code
from rft_data.core.canonical import content_id
from rft_data.recipe import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
SLOW = {"sources": ["expert"], "where": "explorer_id = 'recipes.arithmetic:slow_solution'"}
"""The solutions whose steps are right."""
SUPERVISED: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "sft": [(2, {}), (2, {}), (2, {}), (2, SLOW), (6, SLOW)],
    "slow": [(3, SLOW), (3, SLOW), (6, SLOW)],
    "answers": [(8, {}), (8, {}), (16, {})],
}
"""Runs without an online stage: the epochs of their stages, one after another, and on what. `answers` has the
final answers alone, of all training tasks of the kinds held out, which RL's reward compares with."""
VARIANTS: dict[str, dict[str, Any]] = {
    "rl": {},
    "random": {"selector": {"use": "random"}},
    "unfiltered": {
        "experience_ops": [
            {"reward_range_filter": {"min_reward": 0.0, "max_reward": 1.0}},
            {"grpo_advantage_mapper": {}},
        ]
    },
}
"""Runs with an online stage, and what they change in the recipe."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the runs are."""

    name: str = "full"
    changes: tuple[tuple[str, Any], ...] = ()
    """Changes that every cell makes in the recipe."""

    @staticmethod
    def tiny() -> Scale:
        """A model that knows nothing, and a step: whether a cell runs at all."""
        sizes = {f"tasks.{number}.source.size": 40 for number in range(4)}
        stage = {"stages.1.steps": 1, "stages.1.groups_per_step": 2, "stages.1.checkpoint_every": 1}
        rest = {
            "experts.0.limit": 4,
            "experts.1.limit": 4,
            "evaluation.limit": 6,
            "experience_ops": [{"grpo_advantage_mapper": {}}],
        }
        return Scale("tiny", tuple({**sizes, **stage, **rest}.items()))


@dataclass(frozen=True)
class Cell:
    """One run of the showcase."""

    contender: str
    """`rl`, `random`, `unfiltered`, or one of SUPERVISED."""
    seed: int
    engine: str = "vllm"
    scale: Scale = Scale()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.contender}-{self.seed}-{self.engine}-{self.scale.name}"

    @property
    def label(self) -> str:
        """Its name for `--only`."""
        return f"{self.contender},{self.seed}"

    @property
    def command(self) -> str:
        """Command that runs it alone."""
        quick = " --quick" if self.scale.name == "tiny" else ""
        return f"python -m benchmarks.showcase --engine {self.engine}{quick} --only {self.label}"

    @cached_property
    def recipe_hash(self) -> str:
        """A hash of the resolved recipe, and of the code that makes its numbers."""
        recipe = load_recipe(RECIPE, self.changes(Path("root")))
        return content_id(asdict(self.scale), recipe.saved(), run_code(recipe, __name__))

    def changes(self, root: Path) -> list[str]:
        """Changes that the cell makes in the quickstart's recipe."""
        folder = root / self.name
        changes: dict[str, Any] = {
            "name": folder.name,
            "run_dir": str(folder),
            "buffer.uri": str(folder / "buffer"),
            "seed": self.seed,
            "explorer.engine.use": self.engine,
            **dict(self.scale.changes),
        }
        if self.contender in VARIANTS:
            changes.update(VARIANTS[self.contender])
        else:
            changes.update(_supervised(self.contender))
        return [f"{key}={json.dumps(value)}" for key, value in changes.items()]


def _supervised(contender: str) -> dict[str, Any]:
    """The supervised stages alone; the online step that a run must have is one that nobody uses."""
    recipe = load_recipe(RECIPE).model_dump(mode="json")
    own, online = recipe["stages"]
    stages = [
        {**own, "data": data, "trl": {**own["trl"], "num_train_epochs": epochs}}
        for epochs, data in SUPERVISED[contender]
    ]
    unused = {**online, "steps": 1, "groups_per_step": 1, "checkpoint_every": 1}
    changes = {"stages": [*stages, unused], "experience_ops": [{"grpo_advantage_mapper": {}}]}
    if contender == "answers":
        tasksets = recipe["experts"][0]["tasksets"]
        changes["experts"] = [{"use": "recipes.arithmetic:short_answer", "tasksets": tasksets}]
    return changes


def play(cell: Cell, root: Path) -> dict[str, Any]:
    """Run a cell, unless it was run before; its record. Of several supervised stages the best one counts.

    Raises: RuntimeError with the end of the log when the run fails.
    """
    # a run of another recipe or code is not continued
    home = root.absolute() / cell.recipe_hash[:16]
    began = time.monotonic()
    summary = rft_run(RECIPE, cell.changes(home), home / cell.name)
    seconds = time.monotonic() - began
    accuracy, parts = summary["heldout_accuracy"], summary["heldout_parts"]
    _, first, *others, final = accuracy
    end = final if cell.contender in VARIANTS else max([first, *others], key=lambda name: accuracy[name])
    steps = next(name for name in parts[end] if name.endswith(":RightSteps"))
    return {
        "contender": cell.contender,
        "seed": cell.seed,
        "engine": cell.engine,
        "scale": cell.scale.name,
        "start": accuracy[first],
        "end": accuracy[end],
        "right_steps_start": parts[first][steps],
        "right_steps_end": parts[end][steps],
        "groups": summary["groups"]["admitted"],
        "prepare_s": 0.0,
        "seconds": round(seconds, 1),
        "command": cell.command,
        "recipe_hash": cell.recipe_hash,
    }
