"""One run of the grid: GRPO on sums with another algorithm in its place, and what came of it.

A cell changes nothing but the algorithm's name and what that algorithm cannot do without; the rest follows
from its preset. All cells of a seed start from one supervised model. Two variants change more: the negative
control has rewards that mean nothing, and in the stale grid steps train on rollouts of older weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.grid import rft_run
from benchmarks.run_code import run_code
from benchmarks.selectors.cells import RECIPE
from benchmarks.selectors.cells import Cell as SelectorCell
from benchmarks.selectors.cells import Scale as SelectorScale
from ops import OPERATOR_MODULES
from rft_data.core.canonical import content_id
from rft_data.recipe import load_recipe
from rft_data.recipe.algorithms import ALGORITHMS, Algorithm

EXPERTS = {
    "use": "recipes.arithmetic:worked_solution",
    "tasksets": ["terms-3", "terms-4", "terms-5"],
    "limit": 600,
}
"""Solutions that show their work, which the supervised model seldom does."""
EXPERIENCE_OPS = [{"reward_range_filter": {"min_reward": 0.0, "max_reward": 1.0}}]
"""The preset appends its own."""


class Variant(StrEnum):
    """Further changes of a cell."""

    PLAIN = "plain"
    """Nothing."""
    SHUFFLED = "shuffled"
    """The rewards of each group are dealt to its answers by chance: nothing can be learned."""
    STALE = "stale"
    """Weights are published every fourth step, so up to three of four steps train on older rollouts."""


SHUFFLE = {"benchmarks.learning.control:ShuffledRewardsMapper": {}}
STALE_SYNC = {"every": 4, "max_staleness": 4}


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the runs are."""

    name: str = "full"
    pool: int = 3000
    """Tasks read of each number of terms; the held-out share of them is 1/8."""
    steps: int = 20
    rows: int = 128
    """Rollouts of an optimizer step, whatever the size of a group."""
    heldout: int = 450
    prepared: bool = True
    """Whether a supervised model comes first; else the model is as it was built and knows nothing."""

    @staticmethod
    def tiny() -> Scale:
        """Two steps: whether a cell runs at all."""
        return Scale("tiny", pool=40, steps=2, rows=16, heldout=6, prepared=False)


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    algorithm: str
    seed: int
    engine: str = "vllm"
    scale: Scale = Scale()
    variant: Variant = Variant.PLAIN

    @property
    def name(self) -> str:
        """The name of its folder."""
        variant = "" if self.variant == Variant.PLAIN else f"-{self.variant}"
        return f"{self.algorithm}-{self.seed}-{self.engine}-{self.scale.name}{variant}"

    @property
    def label(self) -> str:
        """Its name for `--only`."""
        return f"{self.algorithm},{self.seed},{self.variant}"

    @property
    def command(self) -> str:
        """Command that runs it alone."""
        quick = "" if self.scale.prepared else " --quick"
        return f"python -m benchmarks.learning --engine {self.engine}{quick} --only {self.label}"

    @property
    def preset(self) -> Algorithm:
        """The algorithm's."""
        return ALGORITHMS[self.algorithm]

    @cached_property
    def recipe_hash(self) -> str:
        """A hash of the recipe with its preset, of its preparation, and of the code of its numbers."""
        recipe = load_recipe(RECIPE, self.changes(Path("model"), Path("teacher"), Path("root")))
        modules = {__name__, *preset_modules(self.preset)}
        if self.variant == Variant.SHUFFLED:
            modules.add("benchmarks.learning.control")
        return content_id(asdict(self.scale), recipe.saved(), EXPERTS, run_code(recipe, *modules))

    def changes(self, model: Path, teacher: Path, root: Path) -> list[str]:
        """Changes that the cell makes in the recipe.

        Args:
            model: the supervised model; teacher: a better one. Used where they are needed.
        """
        recipe: dict[str, Any] = load_recipe(RECIPE).model_dump(mode="json")
        folder, preset = root / self.name, self.preset
        stage = {
            "algorithm": self.algorithm,
            "steps": self.scale.steps,
            "groups_per_step": self.scale.rows // preset.group_size,
            "checkpoint_every": 10,
            "trl": {"learning_rate": 1e-4, "lr_scheduler_type": "constant"},
        }
        if preset.critic is not None:
            stage["critic"] = {"learning_rate": 1e-3}  # as the policy's, a hundred times that of large models
        changes = {
            "name": folder.name,
            "run_dir": str(folder),
            "buffer.uri": str(folder / "buffer"),
            "seed": self.seed,
            "tasks": _resized(recipe["tasks"], self.scale.pool),
            "experts": [EXPERTS] if "experts" in preset.needs else [],
            "explorer.engine.use": self.engine,
            "explorer.group_size": preset.group_size,
            "experience_ops": [*EXPERIENCE_OPS, *([SHUFFLE] if self.variant == Variant.SHUFFLED else [])],
            "stages": [{**stage, **({"teacher": str(teacher)} if "teacher" in preset.needs else {})}],
            "evaluation.limit": self.scale.heldout,
        }
        if self.variant == Variant.SHUFFLED:
            changes["allow_unsafe_ops"] = True  # the operator is ours, and no built-in
        if self.variant == Variant.STALE:
            changes["sync"] = STALE_SYNC
        if self.scale.prepared:
            changes["model"] = {"path": str(model)}
        return [f"{key}={json.dumps(value)}" for key, value in changes.items()]


def _resized(tasksets: Sequence[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    return [{**taskset, "source": {**taskset["source"], "size": size}} for taskset in tasksets]


def preset_modules(preset: Algorithm) -> set[str]:
    """Modules of the preset's operators, loss, batch operators, critic and sampler."""
    from rft_data.sampler.make import POLICIES
    from trainers.policy.batch_ops import BATCH_OPS
    from trainers.policy.losses import LOSSES

    found = {OPERATOR_MODULES[name] for entry in preset.advantage for name in entry}
    found |= {BATCH_OPS[name].function.__module__ for entry in preset.batch_ops for name in entry}
    if preset.loss is not None:
        found.add(LOSSES[preset.loss["use"]].function.__module__)
    if preset.critic is not None:
        found.add("trainers.policy.critic")
    if preset.sampler is not None:
        found.add(POLICIES[str(preset.sampler["use"])].__module__)
    return found


def play(cell: Cell, root: Path) -> dict[str, Any]:
    """Prepare and run a cell, each unless it was done before; its record.

    Raises: RuntimeError with the end of the log when a run fails.
    """
    root = root.absolute()
    root.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    model, teacher = _prepared(cell, root)
    prepared = time.monotonic()
    # a run of another recipe or code is not continued
    home = root / cell.recipe_hash[:16]
    summary = rft_run(RECIPE, cell.changes(model, teacher, home), home / cell.name)
    accuracy = summary["heldout_accuracy"]
    return {
        "algorithm": cell.algorithm,
        "seed": cell.seed,
        "variant": cell.variant,
        "engine": cell.engine,
        "scale": cell.scale.name,
        "start": accuracy["start"],
        "end": accuracy["final"],
        "heldout": cell.scale.heldout,
        "steps": cell.scale.steps,
        "trained_rows": summary["rows"]["trained"],
        "prepare_s": round(prepared - began, 1),
        "seconds": round(time.monotonic() - prepared, 1),
        "command": cell.command,
        "recipe_hash": cell.recipe_hash,
    }


def _prepared(cell: Cell, root: Path) -> tuple[Path, Path]:
    """The seed's supervised model, and a teacher where the algorithm needs one."""
    if not cell.scale.prepared:
        from trainers.models.tiny_model import build_tiny_model

        teacher = root / "teacher-tiny"
        if not teacher.is_dir():
            build_tiny_model(teacher, seed=cell.seed + 1)
        return teacher, teacher
    model = _supervised(root / f"prepare-{cell.seed}-{cell.engine}", cell, cell.seed, [])
    if "teacher" not in cell.preset.needs:
        return model, model
    return model, _supervised(root / f"teacher-{cell.engine}", cell, 0, [f"experts={json.dumps([EXPERTS])}"])


def _supervised(folder: Path, cell: Cell, seed: int, more: Sequence[str]) -> Path:
    """The model after the recipe's supervised stage; the selectors' study prepares its own like this."""
    prepared = SelectorCell("uniform", seed, "plain", cell.engine, SelectorScale())
    if not (folder / "summary.json").is_file():
        rft_run(RECIPE, [*prepared.preparation(folder), *more], folder)
    return folder / "stages" / "0-sft"
