"""`python -m benchmarks.explorer [--quick] [--parts tokens,turns,worlds,images] [--at 1,64] [--rounds 12]`.

`tokens`: tokens a second of the explorer against `LLM.generate` of vLLM, at several concurrencies, each
contender in a process of its own, which waits while the other has its turn of seconds. Turns go ours, theirs,
theirs, ours; the median of ratios within rounds counts, over four times as many requests as run at once.
Beside it: the same over as many requests as run at once, and the ratio of processor seconds. `turns` and
`worlds`: what the explorer does itself, around an engine that answers by script. `images`: resident memory by
which an explorer with vLLM grows over 256 rollouts of one image of 27 MB, in images.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from statistics import median

from benchmarks.child import Turn, contender, in_child
from benchmarks.explorer import throughput, worlds
from benchmarks.report import Bar, finish

CHILD = "benchmarks.explorer.throughput"
IMAGES = "benchmarks.explorer.images"
SIDE = 3000
"""Pixels of a side of its image, of noise: 27 MB as a file, 36 MB as PIL has it."""
WAVES = 4
BAR_AT = 64
"""Concurrency at which the bar is."""
SHAPE = {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "intermediate_size": 1536}
"""27 million parameters."""
TINY = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 128}
_BOUNDS = {
    "multi_turn_overhead_ms": (2.0, True),
    "history_tokenised_again": (0.0, True),
    "rows_per_rollout": (1.0, True),
    "slow_env_engine_idle": (0.05, True),
    "env_leaks": (0.0, True),
    "infra_zeros": (0.0, True),
    "image_rollouts_growth_images": (2.0, True),
}


def tokens(concurrencies: list[int], rounds: int, threads: int, quick: bool) -> dict[str, float]:
    """Tokens a second of both contenders, and their ratio, at each concurrency."""
    found: dict[str, float] = {}
    length = 8 if quick else 48
    with tempfile.TemporaryDirectory() as folder:
        model = throughput.write_model(folder, TINY if quick else SHAPE)
        print(f"model of {model['parameters'] / 1e6:.1f} million parameters, completions of {length} tokens")
        for concurrency in concurrencies:
            wave = max(throughput.GROUP, concurrency)
            given = {
                "folder": folder,
                "concurrency": concurrency,
                "tokens": length,
                "requests": WAVES * wave,
            }
            with (
                contender(CHILD, "ours", threads, **given) as ours,
                contender(CHILD, "generate", threads, **given) as generate,
            ):
                both = {"ours": ours, "generate": generate}
                for requests, end in ((wave, "_one_wave"), (WAVES * wave, "")):
                    turns = in_turns(both, requests, rounds if requests > wave else min(rounds, 5))
                    found |= compared(turns, requests * length, f"{concurrency}{end}")
    return found


def in_turns(both: Mapping[str, Turn], requests: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Costs of each contender's turns, after one turn each to warm up; who begins a round changes."""
    for turn in both.values():
        turn(requests=requests)
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in both}
    for number in range(rounds):
        for name in both if number % 2 == 0 else reversed(list(both)):
            costs[name].append(both[name](requests=requests))
    return costs


def compared(costs: Mapping[str, Sequence[Mapping[str, float]]], tokens: int, end: str) -> dict[str, float]:
    """Both contenders' median rates and the medians of their ratios, for turns of `tokens`; prints them."""
    walls = {name: [one["wall_s"] for one in turns] for name, turns in costs.items()}
    rates = {name: tokens / median(seconds) for name, seconds in walls.items()}
    ratios = sorted(theirs / mine for mine, theirs in zip(walls["ours"], walls["generate"], strict=True))
    cpu = [
        mine["cpu_s"] / theirs["cpu_s"] for mine, theirs in zip(costs["ours"], costs["generate"], strict=True)
    ]
    print(
        f"{end:>13} at once: {rates['ours']:6.0f} tokens/s, LLM.generate {rates['generate']:6.0f}, "
        f"ratio {median(ratios):.3f} ({', '.join(f'{one:.3f}' for one in ratios)}), "
        f"processor seconds {median(cpu):.3f}",
        flush=True,
    )
    return {
        **{f"{name}_tokens_per_s_{end}": rate for name, rate in rates.items()},
        f"tokens_per_s_vs_llm_generate_{end}": median(ratios),
        f"cpu_s_vs_llm_generate_{end}": median(cpu),
    }


def images(rollouts: int, threads: int) -> dict[str, float]:
    """Growth of an explorer's memory over rollouts of one image, in sizes of its file."""
    with tempfile.TemporaryDirectory() as folder:
        made = in_child(IMAGES, "prepare", threads, folder=folder, side=SIDE)
        found = in_child(IMAGES, "rollouts", threads, folder=folder, names=made["names"], count=rollouts)
    return {
        "image_rollouts_growth_images": found["grown"] / made["bytes"],
        "image_rollouts_growth_trimmed_images": found["grown_trimmed"] / made["bytes"],
        "image_rollouts_peak_images": found["peak"] / made["bytes"],
        "image_rollouts_live_images": found["live"] / made["bytes"],
        "image_rollouts_rows": found["rows"],
    }


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explorer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and few: does it run at all")
    parser.add_argument("--parts", default="tokens,turns,worlds,images")
    parser.add_argument("--at", default="1,16,64,256", help="concurrencies of `tokens`; the bar is at 64")
    parser.add_argument("--rounds", type=int, default=12, help="of `tokens`")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args(argv)
    quick, parts = arguments.quick, arguments.parts.split(",")
    figures: dict[str, float] = {}
    if "tokens" in parts:
        at = [BAR_AT] if quick else [int(one) for one in arguments.at.split(",")]
        figures |= tokens(at, 1 if quick else arguments.rounds, arguments.threads, quick)
    if "turns" in parts:
        figures |= worlds.turns(16 if quick else 64, 8)
    if "worlds" in parts:
        figures |= worlds.slow_worlds(*((64, 0.2) if quick else (1000, 2.0)))
        figures |= worlds.cancelled(24 if quick else 300)
        figures |= worlds.deaths(10 if quick else 100, 0.1)
    if "images" in parts:
        figures |= images(16 if quick else 256, arguments.threads)
    for name, value in figures.items():
        print(f"{name:<44}{value:>12.4g}")
    bars = [Bar(name, figures[name], *bound) for name, bound in _BOUNDS.items() if name in figures]
    name = f"tokens_per_s_vs_llm_generate_{BAR_AT}"
    if name in figures:
        bars.insert(0, Bar(name, figures[name], 0.95))
    finish(bars, {name: metadata.version(name) for name in ("rft-data", "gymnasium")}, figures)


if __name__ == "__main__":
    main()
