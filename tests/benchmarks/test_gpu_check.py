"""The check of a machine with GPUs, as far as it goes without one."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check.__main__ import RECIPE, check, main, misses
from benchmarks.gpu_check.steps import BenchStep, RunStep, steps
from rft_data.core.errors import RecipeError
from rft_data.recipe import load_recipe

ROOT = Path(__file__).parents[2]
UNDER_WAY = ("transport", "colocate", "shard")
"""Keys of a recipe that steps use and that may not be there yet; then the step says so when it is run."""


@pytest.mark.parametrize(
    "step", [step for step in steps(8) if isinstance(step, RunStep)], ids=lambda s: s.name
)
def test_what_a_step_runs_is_a_recipe_or_not_built_yet(step: RunStep) -> None:
    for changes in (step.gpu, step.smoke):
        try:
            load_recipe(RECIPE, list(changes))
        except RecipeError as err:
            if not any(key in str(err) for key in UNDER_WAY):
                raise


@pytest.mark.slow
def test_a_step_that_is_not_built_fails_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = RunStep("missing", (), ("placement.nonsense=1",))
    too_large = BenchStep("too_large", "benchmarks.spread", (), ("--quick", "--nonsense"), gpus=2)
    monkeypatch.setattr(gpu_check, "steps", lambda gpus: [missing, too_large])
    assert main(["--smoke", "--keep", str(tmp_path)]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["step"], line["ok"]) for line in lines] == [("missing", False), ("too_large", False)]
    assert lines[0]["why"].startswith("not built: ")
    assert "nonsense" in lines[0]["why"]
    assert lines[1]["why"].startswith("exit code 2: ")
    small = check(too_large, False, 1, tmp_path)
    assert (small["ok"], small["why"]) == (None, "needs 2 GPUs, this machine shows 1")


def test_figures_that_are_not_as_they_should_be_are_named() -> None:
    figures = {"gained": 0.1, "parity": float("nan")}
    assert misses(figures, {"gained": 0.3}, {"parity": 0.1}) == [
        "gained is 0.1, below 0.3",
        "parity is nan, above 0.1",
    ]
    assert misses({"gained": 0.3, "parity": 0.1}, {"gained": 0.3}, {"parity": 0.1}) == []


def test_without_a_gpu_it_ends_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit):
        main([])
    assert "on a CPU: --smoke" in capsys.readouterr().err


def test_the_extras_that_it_sets_up_are_the_versions_that_the_facts_are_about() -> None:
    locked = (ROOT / "requirements" / "lock-cuda.txt").read_text().splitlines()
    for package in ("torch==2.13", "vllm==0.31", "trl==1.16"):
        assert any(line.startswith(package) for line in locked), package
