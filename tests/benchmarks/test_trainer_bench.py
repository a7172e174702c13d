"""The trainer's benchmark: contenders make one update, packed rows see no other, bars follow from rounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.child import in_child
from benchmarks.gpu_check.steps import BenchStep, steps
from benchmarks.trainer import __main__ as benchmark
from benchmarks.trainer.case import COMPLETION_TOKENS, PROMPT_TOKENS, ROWS, SIZES, TOKENS, Case, write_case
from benchmarks.trainer.child import TASKS
from benchmarks.trainer.packing import obstacle, ragged


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return write_case(SIZES["tiny"], tmp_path_factory.mktemp("case"))


@pytest.mark.slow
def test_rows_are_what_the_issue_says(case: Case) -> None:
    rows = case.table().to_pylist()
    assert len(rows) == ROWS == 8
    assert {len(row["token_ids"]) for row in rows} == {TOKENS} == {256}
    assert {sum(row["action_mask"]) for row in rows} == {COMPLETION_TOKENS}
    assert all(
        row["token_ids"][:PROMPT_TOKENS] == rows[i // 4 * 4]["token_ids"][:64] for i, row in enumerate(rows)
    )
    assert sum(row["advantage"][0] for row in rows[:4]) == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
def test_the_check_of_gpus_measures_steps_on_a_cpu_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its smoke form, in this process; contenders that make different first updates would end it."""
    norms: dict[str, float] = {}

    def here(module: str, what: str, threads: int, **given: Any) -> dict[str, Any]:
        found = TASKS[what](**given)
        if what == "turn":
            norms[given["contender"]] = found["grad_norms"][0]
        return found

    monkeypatch.setattr(benchmark, "in_child", here)
    (step,) = [
        step for step in steps(0) if isinstance(step, BenchStep) and step.module == benchmark.__package__
    ]
    benchmark.main(step.smoke)
    assert list(norms.values()) == pytest.approx([norms["bare"]] * 3, rel=1e-5)
    assert norms["bare"] > 0.1
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["tiny"]["step_vs_bare"] > 0


@pytest.mark.slow
def test_packed_rows_are_what_they_are_alone(case: Case) -> None:
    assert obstacle(case) == ""
    lengths = [len(row["token_ids"]) for row in ragged(40).to_pylist()]
    assert 16 <= min(lengths) < max(lengths) <= TOKENS


def turn(seconds: list[float], peak: float, norm: float = 1.0) -> dict[str, object]:
    """What a child finds; the first step warms up."""
    return {
        "seconds": [100.0, *seconds],
        "processor_seconds": [100.0, *seconds],
        "grad_norms": [norm] * (len(seconds) + 1),
        "peak_mb": peak,
    }


def test_ratios_are_medians_of_those_within_rounds() -> None:
    rounds = [
        {"bare": turn([1.0, 1.0], 100), "ours": turn([1.0, 1.2], 110), "stock": turn([2.0, 2.0], 100)},
        {"bare": turn([9.0, 9.0], 100), "ours": turn([9.0, 9.0], 90), "stock": turn([9.0, 9.0], 100)},
        {"bare": turn([1.0, 1.0], 100), "ours": turn([1.3, 1.3], 95), "stock": turn([1.3, 1.3], 100)},
    ]
    found = benchmark.round_figures(rounds)
    assert found["step_vs_bare"] == pytest.approx(1.1)
    assert found["step_vs_stock"] == pytest.approx(1.0)
    assert found["peak_vs_stock"] == pytest.approx(0.95)
    assert found["bare_ms"] == pytest.approx(1000)
    bars = {bar.name: (bar.value, bar.bound) for bar in benchmark.bars({"100m": found, "tiny": found})}
    assert bars == {
        "step_vs_bare_100m": (pytest.approx(1.1), 1.1),
        "rss_vs_stock_trl": (pytest.approx(0.95), 1.0),
    }


def test_contenders_that_do_something_else_are_told_apart(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"bare": turn([1.0], 1), "ours": turn([1.0], 1, norm=1.1), "stock": turn([1.0], 1)}
    monkeypatch.setattr(benchmark, "in_child", lambda module, what, threads, contender, **_: found[contender])
    with pytest.raises(RuntimeError, match="do not do the same update"):
        benchmark.play_round(SIZES["tiny"], case.folder, 1, 0)


@pytest.mark.heavy
def test_a_child_measures_a_contender_and_tells_why_it_failed(case: Case) -> None:
    found = in_child(benchmark.CHILD, "turn", 1, contender="bare", folder=str(case.folder), steps=2)
    assert len(found["seconds"]) == len(found["processor_seconds"]) == 2
    assert found["peak_mb"] > 100
    with pytest.raises(RuntimeError, match="KeyError: 'nobody'"):
        in_child(benchmark.CHILD, "turn", 1, contender="nobody", folder=str(case.folder), steps=1)
