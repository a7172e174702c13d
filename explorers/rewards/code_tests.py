"""The reward `code_tests`: the share of a task's unit tests that a model's code passes, in a sandbox."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from explorers.rewards.unit_tests import (
    UnitTest,
    UnitTests,
    code_in,
    program_of_test,
    same_output,
    unit_tests,
)
from explorers.sandbox import Program, Sandbox, SandboxLimits
from explorers.sandbox.languages import find_interpreter
from explorers.sandbox.probe import choose
from rft_data.core.errors import RecipeError, SandboxError
from rft_data.core.rows import Task
from rft_data.core.words import ProgramEnd, UnscoredCause
from rft_data.core.workflow import Unscored

_VERDICTS: Mapping[ProgramEnd, str] = {
    ProgramEnd.TIMEOUT: "timed_out",
    ProgramEnd.KILLED: "over_limit",
    ProgramEnd.OUTPUT: "over_limit",
    ProgramEnd.DISK: "over_limit",
}
PASSED, FAILED = "passed", "failed"


class CodeTests:
    """Runs the code of a completion's last fenced block against each test of the task, each in a new process.

    Its parts count tests by verdict: `passed`, `failed`, `timed_out`, `over_limit`; and `tests`, all of them.
    """

    runs_programs: ClassVar[bool] = True
    """`explorer.sandbox` of the recipe is its argument `sandbox`."""

    def __init__(
        self,
        language: str = "python",
        score: Literal["all", "share"] = "all",
        total_s: float = 8.0,
        limits: Mapping[str, Any] | None = None,
        sandbox: str = "auto",
    ) -> None:
        """Find a sandbox that holds.

        Args:
            language: of tasks that do not say theirs.
            score: `all`: 1.0 when every test passes, else 0.0, and no test is run after one that failed;
                `share`: the share that passes.
            total_s: seconds for all tests of a completion together; tests that were not run by then have
                timed out. Less than `reward_deadline_s`.
            limits: of one test; fields of `SandboxLimits`.
        Raises: SandboxError when no sandbox holds; RecipeError, UnknownComponentError for other arguments.
        """
        if score not in ("all", "share"):
            raise RecipeError(f"code_tests.score is {score!r}; wanted 'all' or 'share'.")
        find_interpreter(language)
        self._language = language
        self._all = score == "all"
        self._total_s = total_s
        self._limits = replace(SandboxLimits(), **(limits or {}))
        self._sandbox = Sandbox(choose(sandbox).kind, self._limits)

    def __call__(self, task: Task, completion: str) -> Mapping[str, float] | Unscored:
        """Unscored when the task has no tests that can be run, or the sandbox broke down."""
        try:
            tests = unit_tests(task, self._language)
            found = self._run(code_in(completion), tests)
        except ValueError as err:
            return Unscored(str(err))
        except SandboxError as err:
            return Unscored(str(err), UnscoredCause.INFRASTRUCTURE)
        share = found[PASSED] / len(tests.tests)
        counts = {name: float(found[name]) for name in (PASSED, FAILED, *sorted(set(_VERDICTS.values())))}
        return {
            "reward": float(share == 1.0) if self._all else share,
            "tests": float(len(tests.tests)),
            **counts,
        }

    def close(self) -> None:
        """End the sandbox's process; idempotent."""
        self._sandbox.close()

    def _run(self, code: str, tests: UnitTests) -> Counter[str]:
        """How many tests have which verdict."""
        end = time.monotonic() + self._total_s
        found: Counter[str] = Counter()
        for number, test in enumerate(tests.tests):
            left = end - time.monotonic()
            if left <= 0:
                found["timed_out"] += len(tests.tests) - number
                break
            verdict = self._verdict(code, tests, test, left)
            found[verdict] += 1
            if self._all and verdict != PASSED:
                break
        return found

    def _verdict(self, code: str, tests: UnitTests, test: UnitTest, left: float) -> str:
        seconds = min(left, self._limits.seconds)
        if test.statements is None:
            ran = self._sandbox.run(Program(tests.language, code, test.stdin, seconds))
            passed = ran.succeeded and same_output(ran.stdout, test.stdout or "")
        else:
            proof = secrets.token_hex(16)
            source = program_of_test(code, tests, test.statements)
            ran = self._sandbox.run(Program(tests.language, source, f"{proof}\n", seconds))
            passed = proof in ran.stdout
        if ran.end != ProgramEnd.EXITED:
            return _VERDICTS[ran.end]
        return PASSED if passed else FAILED
