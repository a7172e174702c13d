"""The unit tests of a task, and the program that runs one of them on a model's code."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rft_data.core.rows import Task

_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_PYTHON = """\
import os, sys
def run():
    proof = sys.stdin.buffer.readline().strip()
    scope = {{"__name__": "solution"}}
    for part in {parts!r}:
        exec(compile(part, "solution", "exec"), scope)
    os.write(1, proof)
run()
"""
"""The code is no main program here, and cannot pass the test by ending early."""


@dataclass(frozen=True, slots=True)
class UnitTest:
    """One test: what a program must print for an input, or statements that must run without failing."""

    stdin: str = ""
    stdout: str | None = None
    statements: str | None = None


@dataclass(frozen=True, slots=True)
class UnitTests:
    """The tests of one task."""

    tests: Sequence[UnitTest]
    language: str
    setup: str = ""
    """Statements that come between the code and each test's own."""


def unit_tests(task: Task, language: str) -> UnitTests:
    """The tests in a task's metadata, else in its answer.

    `tests` is a list of statements, or of `{"stdin", "stdout"}`; `test_list` and `test_setup_code` are MBPP's
    names, `input_output` with `inputs` and `outputs` is that of APPS; an answer is statements.
    Args: language: of a task that does not say its own.
    Raises: ValueError saying what is wrong.
    """
    given = task.metadata
    setup = str(given.get("setup") or given.get("test_setup_code") or "")
    rows = given.get("tests", given.get("test_list"))
    if rows is None and "input_output" in given:
        rows = _input_output(given["input_output"])
    if rows is None:
        rows = [task.answer] if task.answer else []
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise ValueError(
            "the task has no tests; wanted metadata 'tests' (or 'test_list', 'input_output'), or an answer"
        )
    return UnitTests([_unit_test(row) for row in rows], str(given.get("language", language)), setup)


def code_in(completion: str) -> str:
    """The last fenced block of a completion, cut off or not; all of it where it has none."""
    blocks = _FENCED.findall(completion)
    return str(blocks[-1]) if blocks else completion


def program_of_test(code: str, tests: UnitTests, statements: str) -> str:
    """A program that prints its first line of input once code and statements have run without failing.

    Raises: ValueError for a language in which that cannot be told.
    """
    if tests.language == "python":
        return _PYTHON.format(parts=[code, tests.setup, statements])
    if tests.language == "bash":
        end = f'eval {shlex.quote(statements)} && printf %s "$proof_of_test"'
        return "\n".join(["read -r proof_of_test", code, tests.setup, end])
    raise ValueError(
        f"tests by statements are for python and bash, not {tests.language}; give 'stdin' and 'stdout'"
    )


def same_output(found: str, wanted: str) -> bool:
    """Whether two outputs are equal but for spaces at the ends of lines and empty lines at the end."""
    return _lines(found) == _lines(wanted)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _unit_test(row: object) -> UnitTest:
    if isinstance(row, str):
        return UnitTest(statements=row)
    if isinstance(row, Mapping) and isinstance(row.get("stdout"), str):
        return UnitTest(stdin=str(row.get("stdin", "")), stdout=row["stdout"])
    raise ValueError(f"the task has a test {row!r}; wanted statements, or a map with 'stdin' and 'stdout'")


def _input_output(given: object) -> list[dict[str, str]]:
    found = json.loads(given) if isinstance(given, str) else given
    if not isinstance(found, Mapping) or not isinstance(found.get("inputs"), Sequence):
        raise ValueError("the task's 'input_output' has no 'inputs' and 'outputs'")
    pairs = zip(found["inputs"], found["outputs"], strict=True)
    return [{"stdin": str(read), "stdout": str(written)} for read, written in pairs]
