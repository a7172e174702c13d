"""The reward `countdown`: an expression of given numbers that makes a target."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

from explorers.rewards.final_answer import final_answer
from rft_data.core.rows import Task
from rft_data.core.workflow import Unscored

_LONGEST = 200
_SIGNS = re.compile(r"[\d\s+*/()-]+", re.ASCII)
_NUMBERS = ("numbers", "nums")


class Countdown:
    """1.0 when the final answer is an expression of the task's numbers that makes its target, else 0.0.

    Of the task's metadata: `numbers` (or `nums`) and `target`, as reasoning-gym and TinyZero name them. Each
    number may be used once; `+ - * /` and brackets; computed exactly. What follows `=` is left out.
    """

    trusted: ClassVar[bool] = True
    """Total, and bounded by the length of an expression."""

    def __init__(self, all_numbers: bool = True, marker: str | None = None) -> None:
        """`all_numbers`: every number must be used; `marker`: as in `final_answer`."""
        self._all, self._marker = all_numbers, marker

    def __call__(self, task: Task, completion: str) -> float | Unscored:
        """Unscored when the task has no numbers or no target."""
        numbers: Sequence[int] | None = next(
            (task.metadata[name] for name in _NUMBERS if name in task.metadata), None
        )
        target = task.metadata.get("target")
        if numbers is None or not _whole(numbers) or not isinstance(target, int | float):
            return Unscored("the task's metadata has no 'numbers' (whole ones) and 'target'")
        text = final_answer(completion, self._marker).partition("=")[0].strip()
        used: Counter[int] = Counter()
        readable = len(text) <= _LONGEST and _SIGNS.fullmatch(text)
        try:
            found = _value(ast.parse(text, mode="eval").body, used) if readable else None
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            found = None
        there = Counter(numbers)
        allowed = used == there if self._all else used <= there
        return float(found is not None and allowed and found == Fraction(target))


def _whole(numbers: object) -> bool:
    return isinstance(numbers, Sequence) and bool(numbers) and all(isinstance(one, int) for one in numbers)


def _value(node: ast.expr, used: Counter[int]) -> Fraction:
    """The value of an expression; notes the numbers in it. Raises: ValueError for any other node."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used[node.value] += 1
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, used)
    if not isinstance(node, ast.BinOp):
        raise ValueError(ast.dump(node)[:_LONGEST])
    left, right = _value(node.left, used), _value(node.right, used)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Div):
        return left / right
    raise ValueError(f"{type(node.op).__name__} is no operation of the game")
