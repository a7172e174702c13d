"""The check of a machine with GPUs, as far as it goes without one."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check.__main__ import RECIPE, check, main, misses, other_way
from benchmarks.gpu_check.steps import BenchStep, RunStep, steps
from rft_data.recipe import load_recipe

ROOT = Path(__file__).parents[2]
RUNS = [step for step in steps(8) if isinstance(step, RunStep)]


@pytest.mark.parametrize("step", RUNS, ids=lambda step: step.name)
def test_what_a_step_runs_with_gpus_is_a_recipe(step: RunStep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    load_recipe(RECIPE, list(step.gpu))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", RUNS, ids=lambda step: step.name)
def test_every_run_goes_through_on_a_cpu(
    step: RunStep, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with the same settings are one run: colocated by `shm`, and two ranks by `gloo`."""
    pytest.importorskip("vllm")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    line = check(step, True, 0, folder)
    assert (line["ok"], line["why"]) == (True, "")
    assert line["figures"]["publication_bytes"] > 0


@pytest.mark.slow
def test_a_step_that_is_not_built_fails_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
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


@pytest.mark.slow
def test_a_step_over_its_time_says_so_and_the_later_ones_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(gpu_check, "_LIMIT_S", 0.2)
    both = [BenchStep(name, "http.server", (), ("--bind", "127.0.0.1", "0")) for name in ("first", "second")]
    monkeypatch.setattr(gpu_check, "steps", lambda gpus: both)
    assert main(["--smoke", "--keep", str(tmp_path)]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["step"], line["ok"]) for line in lines] == [("first", False), ("second", False)]
    assert all(line["why"].startswith("exit code 124: timed out after 0.2 s; ") for line in lines)


def test_weights_that_went_another_way_than_asked_fail_the_step() -> None:
    asked = {step.name: step.gpu for step in RUNS}
    assert other_way(asked["publication_nccl"], "nccl") == []
    assert other_way(asked["publication_nccl"], "shm") == ["weights went by shm, asked was nccl"]
    assert other_way(asked["publication_ipc"], None) == ["weights went by None, asked was ipc"]
    assert other_way(asked["quickstart"], "directory") == []


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
