"""`python -m benchmarks.gpu_check [--smoke] [--only NAME,...] [--list] [--keep DIR]`: a machine with GPUs.

`make gpu-check` sets up the GPU extras and calls it. Every step is a process of its own and prints one line
of JSON; `ok` is true, false, or null where the machine has too few GPUs for the step. The exit code is 1
unless every step that could run is true. With `--smoke` every step runs on the CPU, small, without bars: runs
in this process, and those of the same settings once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.child import on_gpus
from benchmarks.gpu_check.steps import BenchStep, RunStep, steps
from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.errors import RecipeError, RftError
from rft_data.core.gpus import visible_devices
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
_LIMIT_S = 3600.0
_GRACE_S = 60.0
_TIMED_OUT = 124
"""Exit code, that of coreutils' `timeout`."""
_LAST = 600
"""Characters of a failed step's output that its line holds."""
Line = dict[str, Any]


def check(step: RunStep | BenchStep, smoke: bool, gpus: int, folder: Path) -> Line:
    """Run one step; its line."""
    line: Line = {"step": step.name, "ok": None, "smoke": smoke, "seconds": 0.0, "figures": {}, "why": ""}
    if not smoke and gpus < step.gpus:
        return {**line, "why": f"needs {step.gpus} GPUs, this machine shows {gpus}"}
    began = time.perf_counter()
    figures, why = _run(step, smoke, folder) if isinstance(step, RunStep) else _bench(step, smoke)
    seconds = round(time.perf_counter() - began, 1)
    return {**line, "ok": not why, "seconds": seconds, "figures": figures, "why": why}


def _run(step: RunStep, smoke: bool, folder: Path) -> tuple[Line, str]:
    """Figures of a run, and what is wrong with it."""
    settings = step.smoke if smoke else step.gpu
    root = folder / (content_id(list(settings))[:8] if smoke else step.name)
    changes = [f"run_dir={root}", f"buffer.uri={root}/buffer", *settings]
    code, said = (
        _run_here(changes) if smoke else _called(["rft_data.cli.app", "run", str(RECIPE), *changes], smoke)
    )
    if code:
        return {}, f"not built: {said}" if code == RecipeError.exit_code else f"exit code {code}: {said}"
    figures = run_figures(root)
    wrong = misses(figures, {} if smoke else step.least, step.most)
    return figures, "; ".join([*wrong, *other_way(settings, figures["weights"])])


def _run_here(changes: Sequence[str]) -> tuple[int, str]:
    """Run in this process, unless such a run is complete; exit code and error."""
    try:
        run_recipe(load_recipe(RECIPE, list(changes)))
    except RftError as err:
        return err.exit_code, str(err)[-_LAST:]
    return 0, ""


def run_figures(root: Path) -> Line:
    """Figures that a finished run tells of itself."""
    summary = json.loads((root / "summary.json").read_text())
    passes = summary["heldout_accuracy"]
    with Buffer(root / "buffer", read_only=True) as buffer:
        rows = buffer.read("metrics", ["role", "key", "value"]).to_pylist()
    by_key: dict[str, list[float]] = {}
    for row in rows:
        by_key.setdefault(row["key"], []).append(row["value"])
    found = {
        "weights": (summary["weights"] or {}).get("use"),
        "gained": passes["final"] - passes["start"],
        "seconds": summary["seconds"],
        "parity": max(by_key["parity"]),
    }
    published = {name: by_key[name] for name in by_key if name.startswith("publication_")}
    return {**found, **{name: median(values) for name, values in published.items()}}


def misses(figures: Mapping[str, Any], least: Mapping[str, float], most: Mapping[str, float]) -> list[str]:
    """A text for each figure that is not what it should be."""
    low = [
        f"{name} is {figures[name]:.4g}, below {bound:g}"
        for name, bound in least.items()
        if figures[name] < bound
    ]
    high = [
        f"{name} is {figures[name]:.4g}, above {bound:g}"
        for name, bound in most.items()
        if not figures[name] <= bound
    ]
    return low + high


def other_way(settings: Sequence[str], went: str | None) -> list[str]:
    """A text if the weights went another way than the settings of a run ask for."""
    asked = [one.partition("=")[2] for one in settings if one.startswith("explorer.engine.transport.use=")]
    return [f"weights went by {went}, asked was {way}" for way in asked if way != went]


def _bench(step: BenchStep, smoke: bool) -> tuple[Line, str]:
    """Figures of a benchmark, and the bars that it missed."""
    code, text = _called([step.module, *(step.smoke if smoke else step.gpu)], smoke)
    if code:
        return {}, f"exit code {code}: {text}"
    said = json.loads(text)
    missed = [
        f"{bar['name']} is {bar['value']}, bar {bar['bound']}" for bar in said["bars"] if not bar["holds"]
    ]
    return said["figures"], "" if smoke else "; ".join(missed)


def _called(command: Sequence[str], smoke: bool) -> tuple[int, str]:
    """Exit code of a process, and the last line of what it printed, or the end of its error.

    One that needs longer than _LIMIT_S is asked to end, so that it ends what it has started, and then killed.
    """
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", *command], stdout=-1, stderr=-1, text=True, env=on_gpus(not smoke)
    ) as process:
        try:
            out, err = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            return _TIMED_OUT, f"timed out after {_LIMIT_S:g} s; {_end_of(process)}"
    if process.returncode:
        return process.returncode, (err.strip() or out.strip())[-_LAST:]
    return 0, out.strip().rpartition("\n")[2]


def _end_of(process: subprocess.Popen[str]) -> str:
    """The last words of a process that was asked to end."""
    try:
        out, err = process.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return f"its last words: {(err.strip() or out.strip())[-_LAST:] or 'none'}"


def main(argv: Sequence[str] | None = None) -> int:
    """Check, and print a line for each step; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check")
    parser.add_argument("--smoke", action="store_true", help="on the CPU, small: does every step run at all")
    parser.add_argument("--only", help="names of steps, with commas")
    parser.add_argument("--list", action="store_true", help="print the names, and end")
    parser.add_argument("--keep", type=Path, help="keep the runs here")
    arguments = parser.parse_args(argv)
    gpus = 0 if arguments.smoke else len(visible_devices())
    every = steps(gpus)
    known = [step.name for step in every]
    if arguments.list:
        print("\n".join(known))
        return 0
    chosen = known if arguments.only is None else arguments.only.split(",")
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(f"no steps {unknown}; there are {', '.join(known)}")
    if not arguments.smoke and not gpus:
        parser.error("this machine shows no GPU (nvidia-smi, CUDA_VISIBLE_DEVICES); on a CPU: --smoke")
    good = True
    if arguments.smoke:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        for step in every:
            if step.name in chosen:
                line = check(step, arguments.smoke, gpus, folder)
                print(json.dumps(line), flush=True)
                good = good and line["ok"] is not False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
