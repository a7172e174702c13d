"""What a sandbox costs and whether it holds: `python -m benchmarks.sandbox [--sandbox KIND] [--calls N]`.

`sandbox_ms` is the wall time of one call from a thread that waits for it: a Python program prints one line.
`sandbox_escapes` counts what the hostile programs of hostile.yaml could do or left behind.
"""

from __future__ import annotations

import argparse
import statistics
import time

from benchmarks.report import Bar, finish
from benchmarks.sandbox.battery import LIMITS, escapes, hostile_programs, outside
from explorers.sandbox import Program, Sandbox
from explorers.sandbox.probe import choose

_MOST_MS = 100.0


def main() -> None:
    """Measure, and print a table and the JSON line."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--sandbox", default="auto")
    asked.add_argument("--calls", type=int, default=200)
    options = asked.parse_args()
    choice = choose(options.sandbox)
    print(f"sandbox: {choice}")
    with Sandbox(choice.kind, LIMITS) as sandbox:
        took = _call_ms(sandbox, options.calls)
        found = _escapes(sandbox)
    percentile = sorted(took)[int(0.95 * (len(took) - 1))]
    bars = [
        Bar("sandbox_ms", statistics.fmean(took), _MOST_MS, ceiling=True),
        Bar("sandbox_escapes", float(len(found)), 0.0, ceiling=True),
    ]
    figures = {
        "sandbox_ms_p95": round(percentile, 3),
        "calls": len(took),
        "programs": len(hostile_programs()),
    }
    finish(bars, {"sandbox": choice.kind}, {**figures, "escapes": found})


def _call_ms(sandbox: Sandbox, calls: int) -> list[float]:
    """Milliseconds of each call, without the start of the sandbox's process."""
    program = Program("python", "print(input())", "hello\n")
    sandbox.run(program)
    took = []
    for _ in range(calls):
        began = time.perf_counter()
        assert sandbox.run(program).stdout == "hello\n"  # noqa: S101 - a benchmark
        took.append(1e3 * (time.perf_counter() - began))
    return took


def _escapes(sandbox: Sandbox) -> list[str]:
    found = []
    with outside() as out:
        for program in hostile_programs():
            ran, could = escapes(sandbox, program, out)
            print(f"{program.name:<40}{ran.end:>9}{1e3 * ran.seconds:>8.0f} ms  {'; '.join(could)}")
            found += [f"{program.name}: {what}" for what in could]
    return found


if __name__ == "__main__":
    main()
