"""Records: verdicts of trials, so that a call goes on where one stopped; mutants that change nothing."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks.mutants.edits import Mutant
from benchmarks.mutants.parts import Target, test_files
from benchmarks.mutants.trial import Outcome, Verdict

Key = tuple[str, str, str, str]


class Equivalents:
    """Mutants that no test can kill, each with the reason: `equivalents.jsonl`, written by hand.

    A change `*` stands for every mutant of the line.
    """

    def __init__(self, path: Path) -> None:
        lines = path.read_text().splitlines() if path.exists() else []
        self._why: dict[Key, str] = {}
        for row in map(json.loads, lines):
            for change in row["changes"]:
                self._why[(row["module"], row["function"], row["line"], change)] = row["why"]

    def __contains__(self, mutant: Mutant) -> bool:
        return bool(self._why.keys() & _names(mutant))

    def gone(self, mutants: Iterable[Mutant]) -> list[Key]:
        """Records that name no mutant of today: the line was changed, so look at the reason again."""
        return sorted(self._why.keys() - {name for mutant in mutants for name in _names(mutant)})


def _names(mutant: Mutant) -> set[Key]:
    return {mutant.key, (*mutant.key[:3], "*")}


class Verdicts:
    """Verdicts by mutant, valid while the module's source and its tests are what they were."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root
        self._hashes: dict[str, str] = {}
        self._rows: dict[tuple[Key, str], Verdict] = {}
        self._killers: dict[str, Counter[str]] = {}
        for row in map(json.loads, path.read_text().splitlines() if path.exists() else []):
            key = (row["module"], row["function"], row["line"], row["change"])
            self._keep(key, row["hash"], Verdict(Outcome(row["outcome"]), row["killer"], row["cpu_s"]))

    def _keep(self, key: Key, digest: str, verdict: Verdict) -> None:
        self._rows[key, digest] = verdict
        if verdict.killer:
            self._killers.setdefault(key[0], Counter())[verdict.killer] += 1

    def find(self, mutant: Mutant, target: Target) -> Verdict | None:
        """Verdict on the mutant, made with today's source and tests."""
        return self._rows.get((mutant.key, self._hash(target)))

    def add(self, mutant: Mutant, target: Target, verdict: Verdict) -> None:
        """Write a verdict down."""
        module, function, line, change = mutant.key
        digest = self._hash(target)
        row = {"module": module, "function": function, "line": line, "change": change, "hash": digest}
        row |= {"outcome": verdict.outcome, "killer": verdict.killer, "cpu_s": round(verdict.cpu_s, 2)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._keep(mutant.key, digest, verdict)

    def killers(self, module: str) -> list[str]:
        """The tests that killed mutants of this module, most kills first."""
        return [test for test, _ in self._killers.get(module, Counter()).most_common(12)]

    def _hash(self, target: Target) -> str:
        """Of the module's source and its tests."""
        if target.module not in self._hashes:
            digest = hashlib.sha256()
            for path in (self._root / target.module, *test_files(self._root, target)):
                digest.update(path.read_bytes())
            self._hashes[target.module] = digest.hexdigest()[:16]
        return self._hashes[target.module]
