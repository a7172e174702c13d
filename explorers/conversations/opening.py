"""Messages that a recipe puts before a task's own: a system prompt and solved examples (few-shot).

Both are part of the stored prompt, and none of it is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rft_data.core.chat import chat
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.rows import Message

_SYSTEM = ("system", "developer")


class Opening:
    """The system prompt of tasks that have none of their own, then the examples, then the task."""

    def __init__(self, system: str | None = None, examples: Sequence[object] | None = None) -> None:
        """`examples`: pairs `[question, answer]`, messages `{role, content}`, or both.

        Raises: RecipeError for what is neither, for a system prompt among them, and where the last message
            is not an assistant's.
        """
        self._system = None if system is None else {"role": "system", "content": system}
        self._examples = _messages(examples or ())

    def before(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The whole prompt of a task with these messages."""
        own = len(messages) > 0 and messages[0]["role"] in _SYSTEM
        first = messages[:1] if own else [self._system] if self._system else []
        return (*first, *self._examples, *(messages[1:] if own else messages))


def _messages(examples: Sequence[object]) -> list[Message]:
    where = "explorer.workflow.args.examples"
    if isinstance(examples, str) or not isinstance(examples, Sequence):
        raise RecipeError(f"{where} is a {type(examples).__name__}; wanted a list of [question, answer].")
    found: list[Message] = []
    for place, one in enumerate(examples):
        if isinstance(one, Mapping):
            found.append(one)
        elif isinstance(one, Sequence) and not isinstance(one, str) and [*map(type, one)] == [str, str]:
            found += ({"role": "user", "content": one[0]}, {"role": "assistant", "content": one[1]})
        else:
            raise RecipeError(
                f"{where}[{place}] is {one!r:.80}; wanted two texts [question, answer], or a message "
                "{role: ..., content: ...}. Quote numbers."
            )
    if not found:
        return []
    try:
        checked = chat(found, where)
    except RowError as err:
        raise RecipeError(f"{err}.") from err
    roles = [str(message["role"]) for message in checked]
    if {*roles} & {*_SYSTEM} or roles[-1] != "assistant":
        raise RecipeError(
            f"{where} has messages of the roles {roles}; wanted no system prompt among them (say 'system'), "
            "and an assistant's answer at the end."
        )
    return [dict(message) for message in checked]
