"""The explorer's benchmark runs, and what it counts can be other than zero."""

import json
from pathlib import Path

import pytest

from benchmarks.explorer import scripted, throughput, worlds
from benchmarks.explorer.__main__ import compared, main
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


def test_contenders_are_compared_within_a_round_and_every_token_counts() -> None:
    runs = {"ours": (20.0, 9.0, 10.0), "generate": (10.0, 10.0, 10.0)}
    found = compared(
        {name: [{"waves": rate} for rate in rates] for name, rates in runs.items()}, "waves", "64"
    )
    assert found == {
        "ours_tokens_per_s_64": 10.0,
        "generate_tokens_per_s_64": 10.0,
        "tokens_per_s_vs_llm_generate_64": 1.0,
    }
    # each call takes half a second, and a tenth for each request
    assert throughput.rates(lambda count: 0.5 + count / 10, 5, 3, 4) == {"one_wave": 20.0, "waves": 30.0}
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
