"""The tool for models: what it answers."""

from __future__ import annotations

import inspect

import pytest

from explorers.sandbox.python_tool import PythonTool
from rft_data.core.errors import SandboxError


@pytest.fixture(scope="module")
def tool() -> PythonTool:
    try:
        return PythonTool(seconds=1.0, longest=200)
    except SandboxError as err:
        pytest.skip(f"no sandbox: {err}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print(6 * 7)", "42"),
        ("x = 1", "[no output]"),
        ("import sys; print('a'); sys.exit(2)", "a\n\n[exit status 2]"),
        ("print(1, flush=True)\nwhile True: pass", "1\n\n[the program was stopped: it ran too long]"),
    ],
)
def test_the_answer_is_what_the_program_prints(tool: PythonTool, code: str, answer: str) -> None:
    assert tool.python(code) == answer


def test_errors_and_long_answers_are_shown(tool: PythonTool) -> None:
    assert "ZeroDivisionError" in tool.python("1 / 0")
    assert "... 1801 characters left out ..." in tool.python("print('x' * 2000)")


def test_the_method_describes_itself() -> None:
    assert "Args:\n    code:" in inspect.cleandoc(PythonTool.python.__doc__ or "")
    assert PythonTool.python.__annotations__ == {"code": "str", "return": "str"}
