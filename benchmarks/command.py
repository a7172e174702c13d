"""Cost of the command line beside Python itself: `python -m benchmarks.command`.

Processor seconds of whole child processes, the median of `--times`, as a ratio to `python -c pass`. On a
machine where that takes 25 ms, a ratio of 12 is 0.3 s.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks.report import Bar, finish

_RFT = ("-m", "rft_data.cli.app")
PASS = ("-c", "pass")
COMMANDS: Mapping[str, tuple[Sequence[str], float]] = {
    "help": ((*_RFT, "--help"), 12.0),
    "recipe_list": ((*_RFT, "recipe", "list"), 20.0),
    "ops_list": ((*_RFT, "ops", "list"), 30.0),
    "validate": ((*_RFT, "recipe", "validate", "quickstart"), 40.0),
}
"""Commands that are measured, and the most each may cost in units of `python -c pass`."""


def cpu_seconds(arguments: Sequence[str]) -> float:
    """Processor seconds of a child with these arguments for Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Measure in turns, so that all meet the same machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    args = parser.parse_args()
    asked = {"pass": PASS, **{name: command for name, (command, _) in COMMANDS.items()}}
    spent: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(1 if args.quick else args.times):
        for name, command in asked.items():
            spent[name].append(cpu_seconds(command))
    median = {name: statistics.median(times) for name, times in spent.items()}
    print(f"{'command':<14}{'CPU s':>8}{'x pass':>8}")
    for name, seconds in median.items():
        print(f"{name:<14}{seconds:>8.3f}{seconds / median['pass']:>8.1f}")
    bars = [
        Bar(f"{name}_vs_pass", median[name] / median["pass"], bound, ceiling=True)
        for name, (_, bound) in COMMANDS.items()
    ]
    finish(bars, {}, {"cpu_s": median})


if __name__ == "__main__":
    main()
