"""The explorer's benchmark runs, and what it counts can be other than zero."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.child import Turn
from benchmarks.explorer import __main__ as explorer
from benchmarks.explorer import scripted, throughput, worlds
from benchmarks.explorer.__main__ import compared, in_turns, main
from benchmarks.gpu_check.steps import BenchStep, steps
from trainers.models.tiny_model import build_tiny_tokenizer


@pytest.mark.slow
def test_a_quick_run_keeps_its_bars(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--parts", "turns,worlds"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    bars = {bar["name"]: bar["holds"] for bar in found["bars"] if bar["name"] != "slow_env_engine_idle"}
    assert bars == dict.fromkeys(bars, True)
    assert {"history_tokenised_again", "rows_per_rollout", "env_leaks", "infra_zeros"} < bars.keys()
    figures = found["figures"]
    assert figures["turns_asked"] == 8
    assert figures["env_cancelled"] == 24
    assert figures["infra_deaths"] + figures["infra_scored"] == 80
    assert figures["infra_deaths"] > 0


@pytest.mark.slow
def test_the_check_of_gpus_counts_tokens_on_a_cpu_too(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its smoke form, with both contenders in this process."""
    pytest.importorskip("vllm")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

    @contextmanager
    def here(module: str, what: str, threads: int, **given: Any) -> Iterator[Turn]:
        with throughput.CONTENDERS[what](**given) as turn:
            yield turn

    monkeypatch.setattr(explorer, "contender", here)
    (step,) = [
        step for step in steps(0) if isinstance(step, BenchStep) and step.module == explorer.__package__
    ]
    main(list(step.smoke))
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])["figures"]
    assert figures["ours_tokens_per_s_64"] > 0
    assert figures["generate_tokens_per_s_64"] > 0


def test_contenders_take_turns_and_are_compared_within_a_round() -> None:
    asked: list[str] = []

    def taking(name: str, walls: list[float]) -> Turn:
        def turn(requests: int) -> dict[str, Any]:
            asked.append(f"{name}{requests}")
            return {"wall_s": walls.pop(0), "cpu_s": 2.0 if name == "ours" else 1.0}

        return turn

    both = {
        "ours": taking("ours", [9.0, 1.0, 2.0, 4.0]),
        "generate": taking("generate", [9.0, 2.0, 2.0, 4.0]),
    }
    found = compared(in_turns(both, 5, 3), 20, "64")
    assert asked == ["ours5", "generate5", "ours5", "generate5", "generate5", "ours5", "ours5", "generate5"]
    assert found == {
        "ours_tokens_per_s_64": 10.0,
        "generate_tokens_per_s_64": 10.0,
        "tokens_per_s_vs_llm_generate_64": 1.0,
        "cpu_s_vs_llm_generate_64": 2.0,
    }
    with pytest.raises(RuntimeError, match="47 tokens were sampled, 48"):
        throughput.check_tokens(47, 48)


def test_a_history_that_was_tokenised_again_is_counted(tmp_path: Path) -> None:
    build_tiny_tokenizer().save_pretrained(tmp_path)
    engine = scripted.ScriptedEngine(tmp_path)
    first, reply = [5, 6], engine._reply
    kept, drifted = [*first, *reply, 9], [*first, 8, *reply[1:], 9]
    engine.prompts = [first, kept, kept]
    assert engine.retokenised() == 0
    engine.prompts = [first, drifted]
    assert engine.retokenised() == len(first) + len(reply)


@pytest.mark.slow
def test_environments_that_cannot_be_closed_are_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(self: object) -> None:
        raise OSError("it holds on")

    monkeypatch.setattr(scripted.SlowWorld, "close", close)
    assert worlds.cancelled(8)["env_leaks"] >= 8
