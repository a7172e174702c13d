"""One real GRPO run of the grid: its recipe, its processes, and what its tables and kept weights say.

A run is `rft run` in a process of its own. Weights it would prune are kept by hard links while it runs, and
measured on held-out tasks by an `eval` run afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.grid import rft_run
from benchmarks.run_code import run_code
from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.files import MANIFEST_FILE
from rft_data.recipe import load_recipe

RECIPE = Path(__file__).parent / "recipe.yaml"
"""Its own, so that records outlive changes of the quickstart, whose first form it is."""
TARGET = 0.7
"""Held-out greedy accuracy that counts as reached: the supervised model starts near 0.35 and levels off near
0.81. Chosen, with the learning rate and the steps, on one uniform run before any other selector had run."""
_UNREACHABLE = (9, 12)
"""Terms of the sums that the mixed pool adds: 40 % of its tasks, whose working does not fit the 48 tokens
of a completion. A guess is right now and then. Raw pools have such a part; the recipe's own has not."""
POOLS = ("mixed", "plain")
"""`plain` is the recipe's own pool, where every task is within reach and there is little to choose."""
_USE: Mapping[str, str] = {"uniform": "shuffle"}
"""Contenders that are called otherwise among the selectors."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the runs are."""

    name: str = "full"
    pool: int = 3000
    """Tasks read of each number of terms; the held-out share of them is 1/8."""
    experts: int = 600
    epochs: int = 8
    """Epochs of the supervised stage that makes the model; 0: the model as it is built."""
    steps: int = 24
    learning_rate: float = 2e-5
    """A fifth of the recipe's, which would be at its end after five steps: too few to tell runs apart."""
    groups_per_step: int = 16
    measure_every: int = 2
    """Optimizer steps between two sets of weights that are measured."""
    heldout: int = 450

    @staticmethod
    def tiny() -> Scale:
        """Two steps from a model that knows nothing: whether a cell runs at all."""
        return Scale("tiny", 40, experts=8, epochs=0, steps=2, groups_per_step=2, measure_every=1, heldout=6)


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    selector: str
    seed: int
    pool: str = "mixed"
    engine: str = "vllm"
    scale: Scale = Scale()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.pool}-{self.selector}-{self.seed}-{self.engine}-{self.scale.name}"

    @property
    def label(self) -> str:
        """Its name for `--only`."""
        return f"{self.selector},{self.seed},{self.pool}"

    @property
    def command(self) -> str:
        """Command that runs it alone."""
        return f"python -m benchmarks.selectors.grpo --engine {self.engine} --only {self.label}"

    @cached_property
    def recipe_hash(self) -> str:
        """A hash of the recipe's changes and of the code that makes its numbers."""
        changes = self.changes(Path("model"), Path("root"))
        return content_id(asdict(self), changes, run_code(load_recipe(RECIPE, changes), __name__))

    def changes(self, model: Path, root: Path) -> list[str]:
        """Changes that the cell makes in the recipe."""
        recipe = _said()
        scale = self.scale
        stage = recipe["stages"][-1] | {"steps": scale.steps, "groups_per_step": scale.groups_per_step}
        stage["trl"] = {**stage["trl"], "learning_rate": scale.learning_rate}
        changes = {
            **self._common(root / self.name, recipe),
            "model": {"path": str(model)} if scale.epochs else recipe["model"],
            "experts": [],
            "stages": [stage],
            "selector": {"use": _USE.get(self.selector, self.selector)},
        }
        if scale.name == "tiny":  # its groups have one verdict each: nothing would be left to train on
            changes["experience_ops"] = [{"grpo_advantage_mapper": {}}]
        return [f"{key}={json.dumps(value)}" for key, value in changes.items()]

    def preparation(self, folder: Path) -> list[str]:
        """Settings of the run that makes the model: a supervised stage, and an online step without use."""
        recipe = _said()
        scale = self.scale
        changes = {
            **self._common(folder, recipe),
            "experts": [
                expert | {"limit": min(expert["limit"], scale.experts)} for expert in recipe["experts"]
            ],
            "stages.0.trl.num_train_epochs": scale.epochs,
            "stages.1.steps": 1,
            "stages.1.groups_per_step": 1,
            "experience_ops": [{"grpo_advantage_mapper": {}}],
            "evaluation.limit": 6,
        }
        return [f"{key}={json.dumps(value)}" for key, value in changes.items()]

    def _common(self, folder: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "name": folder.name,
            "run_dir": str(folder),
            "buffer.uri": str(folder / "buffer"),
            "seed": self.seed,
            "tasks": self.tasksets(recipe),
            "explorer.engine.use": self.engine,
            "evaluation.limit": self.scale.heldout,
        }

    def tasksets(self, recipe: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The recipe's, and for the mixed pool the ones out of reach, of which none is held out."""
        own = [_resized(taskset, self.scale.pool) for taskset in recipe["tasks"]]
        return own + [_longer(own[0], terms) for terms in _UNREACHABLE if self.pool == "mixed"]


def _resized(taskset: Mapping[str, Any], size: int) -> dict[str, Any]:
    return {**taskset, "source": {**taskset["source"], "size": size}}


def _longer(taskset: Mapping[str, Any], terms: int) -> dict[str, Any]:
    source = taskset["source"]
    args = {**source["args"], "min_terms": terms, "max_terms": terms}
    changed = {**source, "args": args, "seed": 1000 * terms}
    return {**taskset, "name": f"terms-{terms}", "difficulty": terms, "heldout": 0.0, "source": changed}


@cache
def _said() -> dict[str, Any]:
    """The recipe without what is default, so that a new default changes no hash."""
    return load_recipe(RECIPE).model_dump(mode="json", exclude_defaults=True)


def play(cell: Cell, root: Path) -> dict[str, Any]:
    """Prepare, run and measure a cell, each unless it was done before; its record."""
    root = root.absolute()
    root.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    prepared = root / f"prepare-{cell.seed}-{cell.engine}-{cell.scale.name}"
    if cell.scale.epochs and not (prepared / "summary.json").is_file():
        plain = Cell("uniform", cell.seed, "plain", cell.engine, cell.scale)
        rft_run(RECIPE, plain.preparation(prepared), prepared)
    folder, kept = root / cell.name, root / f"{cell.name}-weights"
    keeper = _Keeper(folder / "weights", kept, cell.scale.measure_every)
    rft_run(RECIPE, cell.changes(prepared / "stages" / "0-sft", root), folder, keeper.look)
    accuracy = _measured(cell, folder, kept)
    seconds = time.monotonic() - began
    return cell_record(cell, curve(accuracy, _rollouts(folder, cell)), seconds)


class _Keeper:
    """Hard links to the weights of every k-th step; a version that goes away meanwhile is left out."""

    def __init__(self, weights: Path, kept: Path, every: int) -> None:
        self._weights, self._kept, self._every = weights, kept, every

    def look(self) -> None:
        """Keep what is there now and due."""
        for version in sorted(self._weights.glob("v*")):
            try:
                step = json.loads((version / MANIFEST_FILE).read_text())["step"]
                target = self._kept / f"step-{step}"
                if step % self._every or target.is_dir():
                    continue
                draft = self._kept / f".{target.name}"
                shutil.rmtree(draft, ignore_errors=True)
                shutil.copytree(version, draft, copy_function=os.link)
                draft.rename(target)
            except (FileNotFoundError, shutil.Error):
                continue  # pruned while it was read


def _measured(cell: Cell, folder: Path, kept: Path) -> dict[int, float]:
    """Held-out accuracy by optimizer step, by an `eval` run on the kept weights."""
    recipe = json.loads((folder / "recipe.json").read_text())
    run = folder.with_name(f"{folder.name}-eval")
    path = run.with_suffix(".json")
    shared = {key: recipe[key] for key in ("recipe", "seed", "tasks", "explorer", "evaluation")}
    models = sorted(str(model) for model in kept.glob("step-*"))
    own = {"mode": "eval", "name": run.name, "run_dir": str(run), "buffer": {"uri": str(run / "buffer")}}
    path.write_text(json.dumps({**shared, **own, "models": models}))
    found = rft_run(path, [], run)["heldout_accuracy"]
    return {int(Path(model).name.removeprefix("step-")): accuracy for model, accuracy in found.items()}


def _rollouts(folder: Path, cell: Cell) -> dict[int, int]:
    """Rollouts sampled until each optimizer step was done, those of dropped groups included."""
    with Buffer(folder / "buffer", read_only=True) as buffer:
        rows = buffer.read("metrics").to_pylist()
    size = load_recipe(RECIPE).model_dump()["explorer"]["group_size"]
    counts = {row["step"] + 1: row for row in rows if (row["role"], row["key"]) == ("sampler", "admitted")}
    return {0: 0, **{step: int(row["value"]) * size for step, row in counts.items()}}


def curve(accuracy: Mapping[int, float], rollouts: Mapping[int, int]) -> list[tuple[int, int, float]]:
    """(optimizer step, rollouts so far, held-out accuracy), by step."""
    return [(step, rollouts[step], accuracy[step]) for step in sorted(accuracy) if step in rollouts]


def cell_record(cell: Cell, points: Sequence[tuple[int, int, float]], seconds: float) -> dict[str, Any]:
    """The raw record: the curve, and where it first crosses the target (between two points: on the line)."""
    crossing = crossed(points, TARGET)
    steps, rollouts = crossing or points[-1][:2]
    return {
        "selector": cell.selector,
        "seed": cell.seed,
        "pool": cell.pool,
        "engine": cell.engine,
        "scale": cell.scale.name,
        "target": TARGET,
        "reached": crossing is not None,
        "rollouts_to_target": crossing[1] if crossing else None,
        "rollouts": rollouts,
        "steps": steps,
        "accuracy": points[-1][2],
        "curve": [list(point) for point in points],
        "seconds": round(seconds, 1),
        "command": cell.command,
        "recipe_hash": cell.recipe_hash,
    }


def crossed(points: Sequence[tuple[int, int, float]], target: float) -> tuple[float, float] | None:
    """(steps, rollouts) at which the accuracy first is `target`; None when it never is."""
    if points and points[0][2] >= target:
        return points[0][:2]
    for (step, rollouts, low), (next_step, next_rollouts, high) in pairwise(points):
        if high >= target:
            part = (target - low) / (high - low)
            return step + part * (next_step - step), rollouts + part * (next_rollouts - rollouts)
    return None
