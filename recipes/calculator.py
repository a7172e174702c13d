"""A tool that computes sums, and solutions that use it."""

from __future__ import annotations

import re

from rft_data import RowError, Task

_SUM = re.compile(r"\d+(?: ?[+-] ?\d+)*")


class Calculator:
    """Each public method is a tool. This class has no state, so it needs no `reset`."""

    def sum(self, terms: str) -> int:
        """Add and subtract whole numbers.

        Args:
            terms: for example 12 + 30 - 5.
        """
        if _SUM.fullmatch(terms.strip()) is None:
            raise ValueError(f"{terms!r} is no sum such as 12 + 30 - 5")
        return total(terms)


def used_calculator(task: Task) -> list[dict[str, object]]:
    """A solution of three messages: the call, what the tool says, and the final answer.

    Raises: RowError when the prompt holds no sum.
    """
    question = str(task.messages[-1]["content"])
    found = re.search(rf"({_SUM.pattern}) =", question)
    if found is None:
        raise RowError(f"task '{task.task_id}': there is no sum such as '4 + 3 - 5 =' in {question!r}.")
    call = f'<tool_call>\n{{"name": "sum", "arguments": {{"terms": "{found[1]}"}}}}\n</tool_call>'
    return [
        {"role": "assistant", "content": call},
        {"role": "tool", "name": "sum", "content": str(total(found[1]))},
        {"role": "assistant", "content": f"#### {total(found[1])}"},
    ]


def total(terms: str) -> int:
    """The value of a sum: `12 + 30 - 5` is 37."""
    return sum(int(sign + digits) for sign, digits in re.findall(r"([+-]?) ?(\d+)", terms))
