"""`python -m benchmarks.mutants`: mutants of the code that results rest on, and whether tests kill them.

`--number N` takes a random sample, `--seed` which one (printed), `--parts a,b` some parts only. Verdicts are
kept in `.mutants/` for as long as module and tests stay as they are. A survivor wants a test, a simpler line,
or, where no test can tell it from the original, a record in `equivalents.jsonl`. Exit 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.mutants.edits import Mutant, mutants
from benchmarks.mutants.gate import Gate
from benchmarks.mutants.parts import Target, targets
from benchmarks.mutants.records import Equivalents, Verdicts
from benchmarks.mutants.sandbox import Sandbox
from benchmarks.report import finish

ROOT = Path(__file__).parents[2]
EQUIVALENTS = Path(__file__).parent / "equivalents.jsonl"


def main() -> None:
    """Try the mutants asked for; print survivors, shares by part and the bar."""
    asked = _arguments()
    every = targets(ROOT)
    equivalents = Equivalents(EQUIVALENTS)
    found = [(target, mutant) for target in every for mutant in mutants_of(target, ROOT)]
    for key in equivalents.gone(mutant for _, mutant in found):
        print("equivalents.jsonl names a mutant that is no more; look at it again:", " | ".join(key))
    parts = asked.parts.split(",") if asked.parts else sorted({target.part for target in every})
    drawn = [pair for pair in found if pair[0].part in parts and pair[1] not in equivalents]
    if asked.number is not None:
        drawn = sample(drawn, asked.number, asked.seed)
        print(f"{len(drawn)} of {len(found)} mutants, seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=memory()) as folder:
        sandbox = Sandbox(ROOT, Path(folder))
        gate = Gate(sandbox, Verdicts(ROOT / ".mutants" / "verdicts.jsonl", sandbox.folder))
        gate.try_all(drawn)
    bars, figures = gate.result()
    figures["equivalent"] = sum(mutant in equivalents for _, mutant in found)
    figures["seed"] = asked.seed if asked.number is not None else None
    finish(bars, {"rft-data": metadata.version("rft-data"), "pytest": metadata.version("pytest")}, figures)
    sys.exit(0 if all(bar.holds for bar in bars) else 1)


def memory() -> Path | None:
    """Folder in which tests write small files quickly; None for the system's own place."""
    fast = Path("/dev/shm")  # noqa: S108
    return fast if fast.is_dir() and shutil.disk_usage(fast).free > 4 << 30 else None


def mutants_of(target: Target, root: Path) -> list[Mutant]:
    """All mutants of a module."""
    return mutants(target.module, (root / target.module).read_bytes())


def sample(found: Sequence[tuple[Target, Mutant]], number: int, seed: int) -> list[tuple[Target, Mutant]]:
    """`number` of them, each as likely as the others, in the order of the text."""
    places = random.Random(seed).sample(range(len(found)), min(number, len(found)))  # noqa: S311
    return [found[place] for place in sorted(places)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants")
    parser.add_argument("--number", type=int)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--parts", default="")
    return parser.parse_args()


if __name__ == "__main__":
    main()
