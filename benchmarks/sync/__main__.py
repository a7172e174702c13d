"""`python -m benchmarks.sync [--quick] [--seeds N] [--root DIR]`: what overlap is worth, and what it costs.

Real vLLM and TRL in processes of their own, one thread per role on every side. Then the same with an
environment that takes its time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.report import Bar, finish
from benchmarks.sync.runs import HUB_CPU_S, MODES, Outcome, Setting, play, prepare

_DISTRIBUTIONS = ("lognormal", "bimodal")


def main() -> None:
    """Run, print the table, then the bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sync", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, few steps: does it run at all")
    parser.add_argument("--seeds", type=int, default=3, help="of the runs without waits (default 3)")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of a run (default 40)")
    parser.add_argument("--root", type=Path, help="keep the runs here")
    arguments = parser.parse_args()
    seeds, steps = (1, 6) if arguments.quick else (arguments.seeds, arguments.steps)
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.root or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        model = prepare(root)
        fast = [play(Setting(mode, seed, steps), root, model) for seed in range(seeds) for mode in MODES]
        kinds = _DISTRIBUTIONS[:1] if arguments.quick else _DISTRIBUTIONS
        slow = [play(Setting(mode, 0, steps, kind), root, model) for kind in kinds for mode in MODES]
    show([*fast, *slow])
    versions = {name: metadata.version(name) for name in ("rft-data", "trl", "torch", "pylance")}
    finish(bars(fast, slow), versions, {one.setting.name: one.figures for one in (*fast, *slow)})


def show(outcomes: Sequence[Outcome]) -> None:
    """The table for people."""
    names = ("steps/s", "tok/s", "explorer", "trainer", "reward", "wait ms", "hub ms")
    print(f"{'run':<28}" + "".join(f"{name:>9}" for name in names) + "  lag, tail")
    for one in outcomes:
        explorer = statistics.fmean(v for k, v in one.busy.items() if k.startswith("explorer"))
        tail = "" if one.tail is None else f"  tail {one.tail:.3f}"
        print(
            f"{one.setting.name:<28}{one.steps_per_s:>9.2f}{one.tokens_per_s:>9.0f}{explorer:>9.2f}"
            f"{one.busy['trainer']:>9.2f}{one.reward:>9.3f}{1000 * one.idle_s:>9.1f}"
            f"{1000 * one.hub_cpu:>9.1f}  {dict(one.lag)}{tail}"
        )


def bars(fast: Sequence[Outcome], slow: Sequence[Outcome]) -> list[Bar]:
    """Bars that the runs prove. Ratios are between medians over seeds; the tail is the worst of the runs."""
    rate = {mode: _rate(fast, mode) for mode in MODES}
    slow_ratio = min(
        _rate(slow, "asynchronous", kind) / _rate(slow, "synchronous", kind)
        for kind in {one.setting.distribution for one in slow}
    )
    reward = {mode: [one.reward for one in fast if one.setting.mode == mode] for mode in MODES}
    noise = max(statistics.pstdev(values) for values in reward.values())
    loss = statistics.fmean(reward["synchronous"]) - statistics.fmean(reward["asynchronous"])
    tails = [one.tail for one in slow if one.tail is not None]
    everything = [*fast, *slow]
    asynchronous = [one for one in fast if one.setting.mode == "asynchronous"]
    # groups are waiting in these runs: what the trainer waits for is the hub, the operators and the sampler
    waits = [one.idle_s * one.steps_per_s for one in asynchronous]
    hub_cpu = statistics.median(one.hub_cpu for one in asynchronous)
    return [
        Bar("async_vs_sync_steps_per_s", rate["asynchronous"] / rate["synchronous"], 1.5),
        Bar("one_step_vs_sync_steps_per_s", rate["one-step"] / rate["synchronous"], 1.5),
        Bar("slow_env_async_vs_sync", slow_ratio, 2.0),
        Bar("reward_lost_by_async", loss, max(2 * noise, 0.02), ceiling=True),
        Bar("trainer_wait_fraction", statistics.median(waits), 0.03, ceiling=True),
        Bar("hub_cpu_s_per_step", hub_cpu, HUB_CPU_S, ceiling=True),
        Bar("staleness_bound_violations", sum(one.violations for one in everything), 0, ceiling=True),
        Bar("tail_share", min(tails), 0.97),
        Bar("tail_share_most", max(tails), 1.03, ceiling=True),
    ]


def _rate(outcomes: Sequence[Outcome], mode: str, distribution: str = "") -> float:
    mine = [o for o in outcomes if (o.setting.mode, o.setting.distribution) == (mode, distribution)]
    return statistics.median(one.steps_per_s for one in mine)


if __name__ == "__main__":
    main()
