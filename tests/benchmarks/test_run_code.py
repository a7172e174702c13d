"""Records of runs are named by the code that makes their numbers: if it changes, their bars are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.learning.cells import Cell as LearningCell
from benchmarks.replay.cells import Cell as ReplayCell
from benchmarks.run_code import _WITHIN, code_modules
from benchmarks.selectors import records
from benchmarks.selectors.cells import Cell as GrpoCell
from benchmarks.showcase.cells import Cell as ShowcaseCell
from rft_data.recipe import load_recipe

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


def grids() -> tuple[LearningCell | ReplayCell | GrpoCell | ShowcaseCell, ...]:
    """A cell of each grid, with nothing remembered."""
    return LearningCell("grpo", 0), ReplayCell("fifo", 0), GrpoCell("uniform", 0), ShowcaseCell("rl", 0)


def test_it_covers_what_samples_scores_judges_chooses_and_trains() -> None:
    covered = code_modules(load_recipe(QUICKSTART), "benchmarks.showcase.cells")
    assert covered >= {
        "benchmarks.showcase.cells",
        "explorers.role",
        "explorers.engines.vllm_engine",
        "explorers.engines.vllm_worker",
        "explorers.rewards.reward_child",
        "explorers.workflows.single_turn",
        "ops.advantages.grpo_advantage_mapper",
        "ops.rewards.reward_variance_filter",
        "ops.runtime.pipeline",
        "recipes.arithmetic",
        "rft_data.loop.exploring",
        "rft_data.loop.training",
        "rft_data.sampler.group_sampler",
        "rft_data.sampler.windowed",
        "rft_data.tasks.selectors.difficulty",
        "rft_data.weights.checkpoint",
        "trainers.offline.sft",
        "trainers.policy.grpo",
        "trainers.policy.losses.aggregation",
        "trainers.role",
    }
    assert "explorers.engines.transformers_engine" not in covered, "another engine's"
    assert not [name for name in covered if name.startswith(("rft_data.cli", "rft_data.web"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["trainers.policy.grpo", "explorers.engines.vllm_engine", "rft_data.loop.online"]
)
def test_a_record_of_other_code_does_not_count(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [cell.recipe_hash for cell in grids()]
    source = records._source

    def changed(name: str) -> tuple[str, object]:
        code, imports = source(name)
        return (code + "changed" if name == module else code), imports

    monkeypatch.setattr(records, "_source", changed)
    monkeypatch.setattr("benchmarks.run_code._version", lambda roots: records.code_version(roots, _WITHIN))
    assert not set(before) & {cell.recipe_hash for cell in grids()}
