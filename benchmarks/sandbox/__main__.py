"""Cost of a sandbox, and whether it holds: `python -m benchmarks.sandbox [--sandbox KIND] [--calls N]`.

`sandbox_ms` is the wall time of one call from a thread that waits for it: a Python program prints one line;
`sandbox_cpu_ms` is the processor time of the sandbox's process and of all that it starts, for a call.
`sandbox_escapes` counts what the hostile programs of hostile.yaml could do or left behind.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

from benchmarks.report import Bar, finish
from benchmarks.sandbox.battery import LIMITS, escapes, hostile_programs, hosts, outside
from explorers.sandbox import Program, Sandbox
from explorers.sandbox.probe import choose


def main() -> None:
    """Measure, and print a table and the JSON line."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--sandbox", default="auto")
    asked.add_argument("--calls", type=int, default=200)
    options = asked.parse_args()
    choice = choose(options.sandbox)
    print(f"sandbox: {choice}")
    with Sandbox(choice.kind, LIMITS) as sandbox:
        took, cpu_ms = _call_ms(sandbox, options.calls)
        found = _escapes(sandbox)
    figures = {
        "sandbox_ms": round(statistics.fmean(took), 2),
        "sandbox_ms_p95": round(sorted(took)[int(0.95 * (len(took) - 1))], 2),
        "sandbox_cpu_ms": round(cpu_ms, 2),
        "calls": len(took),
        "programs": len(hostile_programs()),
        "escapes": found,
    }
    for name in ("sandbox_ms", "sandbox_ms_p95", "sandbox_cpu_ms"):
        print(f"{name:<44}{figures[name]:>9}")
    bar = Bar("sandbox_escapes", float(len(found)), 0.0, ceiling=True)
    finish([bar], {"sandbox": choice.kind}, figures)


def _call_ms(sandbox: Sandbox, calls: int) -> tuple[list[float], float]:
    """Wall milliseconds of each call, and processor milliseconds of one on average."""
    program = Program("python", "print(input())", "hello\n")
    sandbox.run(program)
    [host] = hosts()
    took, before = [], _cpu_s(host)
    for _ in range(calls):
        began = time.perf_counter()
        assert sandbox.run(program).stdout == "hello\n"  # noqa: S101 - a benchmark
        took.append(1e3 * (time.perf_counter() - began))
    return took, 1e3 * (_cpu_s(host) - before) / calls


def _cpu_s(pid: int) -> float:
    """Processor seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


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
