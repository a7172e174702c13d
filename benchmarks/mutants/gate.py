"""Tries mutants one after another and counts who was killed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.mutants.edits import Mutant
from benchmarks.mutants.parts import Target
from benchmarks.mutants.records import Verdicts
from benchmarks.mutants.sandbox import Sandbox
from benchmarks.mutants.trial import Outcome, Verdict, preload, run_tests
from benchmarks.report import Bar

OVERALL = 0.95
PART = 0.90
ENOUGH = 20
"""Mutants of a part below which its share says too little to be held to a bar."""


class UnsoundError(Exception):
    """A test fails without any mutant, so its kills say nothing."""


class Gate:
    """Keeps the verdicts of one call."""

    def __init__(self, sandbox: Sandbox, verdicts: Verdicts) -> None:
        self._sandbox = sandbox
        self._verdicts = verdicts
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._cpu_s = 0.0
        self._survivors: list[Mutant] = []

    def try_all(self, drawn: Sequence[tuple[Target, Mutant]]) -> None:
        """Try mutants module by module; a module's killers must pass once more without a mutant."""
        modules: dict[str, list[tuple[Target, Mutant]]] = {}
        for target, mutant in drawn:
            modules.setdefault(target.module, []).append((target, mutant))
        for pairs in modules.values():
            self._try_module(pairs[0][0], [mutant for _, mutant in pairs])

    def _try_module(self, target: Target, mutants: Sequence[Mutant]) -> None:
        fresh: list[tuple[Mutant, Verdict]] = []
        for mutant in mutants:
            verdict = self._verdicts.find(mutant, target)
            if verdict is None:
                verdict = self._try(target, mutant, fresh)
                fresh.append((mutant, verdict))
            self._count(target, mutant, verdict)
        self._check_killers(target, {verdict.killer for _, verdict in fresh if verdict.killer})
        for mutant, verdict in fresh:
            self._verdicts.add(mutant, target, verdict)

    def _try(self, target: Target, mutant: Mutant, before: Sequence[tuple[Mutant, Verdict]]) -> Verdict:
        preload(target.libraries)
        source = (self._sandbox.folder / target.module).read_bytes()
        recent = [verdict.killer for _, verdict in reversed(before) if verdict.killer]
        likely = list(dict.fromkeys([*recent[:3], *self._verdicts.killers(target.module), *recent]))
        with self._sandbox.holding(target.module, mutant.applied(source)):
            verdict = run_tests(self._sandbox.folder, target.tests, likely)
        self._cpu_s += verdict.cpu_s
        named = f"{verdict.outcome:<9}{verdict.cpu_s:6.1f} s  {mutant.module} {mutant.function}"
        print(f"{named} | {mutant.line} | {mutant.change} | {verdict.killer}", flush=True)
        return verdict

    def _check_killers(self, target: Target, killers: set[str]) -> None:
        """Without a mutant the tests that killed must pass, or their verdicts are not worth writing down."""
        if not killers:
            return
        verdict = run_tests(self._sandbox.folder, target.tests, only=killers)
        self._cpu_s += verdict.cpu_s
        if verdict.outcome is not Outcome.SURVIVED:
            log = (self._sandbox.folder.parent / "log").read_text()[-4000:]
            raise UnsoundError(f"{verdict.killer or target.tests} fails without any mutant:\n{log}")

    def _count(self, target: Target, mutant: Mutant, verdict: Verdict) -> None:
        self._counts[target.part][verdict.outcome] += 1
        if verdict.outcome is Outcome.SURVIVED:
            self._survivors.append(mutant)

    def result(self) -> tuple[list[Bar], dict[str, Any]]:
        """Survivors, printed; the bars, and the counts behind them."""
        for mutant in self._survivors:
            print(f"survives: {mutant.module} {mutant.function}\n    {mutant.line}\n    {mutant.change}")
        shares = {part: (_share(counts), counts.total()) for part, counts in self._counts.items()}
        overall = sum(self._counts.values(), Counter())
        bars = [Bar("mutants_killed", _share(overall), OVERALL)]
        known = [share for share, total in shares.values() if total >= ENOUGH]
        if known:
            bars.append(Bar("mutants_killed_least_part", min(known), PART))
        parts = {
            part: {**counts, "share": round(shares[part][0], 3)} for part, counts in self._counts.items()
        }
        return bars, {"tried": overall.total(), "cpu_s": round(self._cpu_s), "parts": parts}


def _share(counts: Counter[str]) -> float:
    return 1 - counts[Outcome.SURVIVED] / counts.total() if counts else 0.0
