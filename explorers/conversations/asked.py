"""Checks of a program's request to a rollout's model, before anything is rendered or sampled.

Rows are of one distribution, the recipe's. An argument that asks for another, or that nothing here would
honour, is refused by its name, and so is one of a wrong type: an engine is shared by many rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as short
from typing import TypedDict

from explorers.capture.elements import MOST_ITEMS
from explorers.capture.fields import NEUTRAL, check_value
from explorers.capture.refused import Refused
from rft_data.core.engine import Sampling
from rft_data.core.text import shown

CLIENTS_OWN = ("timeout", "extra_headers")
"""Arguments of a client's call that are no fields of its request, and change nothing of what is sampled."""
_MOST_STOPS = 64
_LIMITS = ("max_completion_tokens", "max_tokens")
_CHECKED = (*_LIMITS, "stop", "temperature", "tool_choice", *CLIENTS_OWN)
_KNOWN: Mapping[str, tuple[object, ...]] = {
    **NEUTRAL,
    "n": (1,),
    "stream": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "extra_body": ({},),
}
"""Arguments with the values that change nothing."""
_TOOL: Mapping[str, tuple[object, ...]] = {"type": ("function",), "function": ()}
_FUNCTION: Mapping[str, tuple[object, ...]] = {
    "name": (),
    "description": (),
    "parameters": (),
    "strict": (False,),
}


class AskedLimits(TypedDict):
    """How a call limits what is sampled."""

    max_tokens: int | None
    stop: tuple[str, ...]


def checked_limits(asked: Mapping[str, object], sampling: Sampling, tools: object = None) -> AskedLimits:
    """The arguments of a call that a model takes beside its messages and tools: `max_tokens` and `stop`.

    Args: tools: those of a chat call, which are checked too; a completion call has none.
    Raises: Refused for one that would sample from another distribution than the recipe's, would be ignored,
        or is of a wrong type.
    """
    said = {name: value for name, value in asked.items() if not _left_out(value)}
    for name, value in said.items():
        if name not in _CHECKED:
            check_value(name, value, _KNOWN.get(name))
    heat = said.get("temperature", sampling.temperature)
    if isinstance(heat, bool) or heat != sampling.temperature:
        raise Refused(
            "temperature",
            f"'temperature' is {shown(short(heat))}; rollouts are sampled at the recipe's "
            f"{sampling.temperature:g}: leave it out, or set explorer.temperature.",
        )
    _check_tools(() if _left_out(tools) else tools, said.get("tool_choice", "auto"))
    return {"max_tokens": _most(said), "stop": _stops(said.get("stop", ()))}


def check_messages(messages: object) -> None:
    """Raises: Refused for what is no list of messages, or too long a one."""
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise Refused("messages", f"'messages' is {shown(short(messages))}; wanted a list of messages.")
    if len(messages) > MOST_ITEMS:  # each takes time to compare with those that are known
        raise Refused("messages", f"'messages' has {len(messages)} messages; at most {MOST_ITEMS} are taken.")
    for place, one in enumerate(messages):
        if not isinstance(one, Mapping):
            raise Refused(
                f"messages[{place}]", f"'messages[{place}]' is {shown(short(one))}; wanted a message."
            )


def check_prompt(prompt: object) -> None:
    """Raises: Refused for what is neither a text nor token ids."""
    is_text = isinstance(prompt, str)
    is_ids = isinstance(prompt, list | tuple) and all(type(one) is int and one >= 0 for one in prompt)
    if not prompt or not (is_text or is_ids):
        raise Refused(
            "prompt", f"'prompt' is {shown(short(prompt))}; wanted one text, or a list of token ids."
        )


def _left_out(value: object) -> bool:
    """Whether an argument says nothing: also as the `openai` package marks it."""
    return value is None or type(value).__name__ in ("NotGiven", "Omit")


def _most(said: Mapping[str, object]) -> int | None:
    """The most tokens of a turn. Raises: Refused."""
    found: int | None = None
    for name in _LIMITS:
        value = said.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Refused(name, f"'{name}' is {shown(short(value))}; wanted a whole number above 0.")
        if found is not None and value != found:
            raise Refused(
                name, f"'{_LIMITS[0]}' is {found} and '{name}' {value}; they are one limit: say one of them."
            )
        found = value
    return found


def _stops(value: object) -> tuple[str, ...]:
    """Raises: Refused."""
    stops = (value,) if isinstance(value, str) else value
    good = isinstance(stops, list | tuple) and all(isinstance(one, str) and one for one in stops)
    if not good or len(stops) > _MOST_STOPS:  # type: ignore[arg-type]
        raise Refused(
            "stop",
            f"'stop' is {shown(short(value))}; wanted a text, or a list of at most {_MOST_STOPS} of them, "
            "none of them empty.",
        )
    return tuple(stops)  # type: ignore[arg-type]


def _check_tools(tools: object, choice: object) -> None:
    """Raises: Refused for what is no list of functions, and for a choice that would be ignored."""
    if not isinstance(tools, list | tuple) or len(tools) > MOST_ITEMS:
        raise Refused(
            "tools", f"'tools' is {shown(short(tools))}; wanted a list of at most {MOST_ITEMS} functions."
        )
    check_value("tool_choice", choice, ("auto",) if tools else ("auto", "none"))
    for place, tool in enumerate(tools):
        name = f"tools[{place}]"
        _check_fields(name, tool, _TOOL, needed=("type", "function"))
        _check_fields(f"{name}.function", tool["function"], _FUNCTION, needed=("name",))
        if not isinstance(tool["function"]["name"], str):
            raise Refused(f"{name}.function.name", f"'{name}.function.name' is no text.")


def _check_fields(
    place: str, found: object, known: Mapping[str, tuple[object, ...]], needed: Sequence[str]
) -> None:
    """Raises: Refused for what is no object of these fields."""
    if not isinstance(found, Mapping) or any(found.get(name) is None for name in needed):
        raise Refused(
            place, f"'{place}' is {shown(short(found))}; wanted an object with {' and '.join(needed)}."
        )
    for name, value in found.items():
        if value is not None:
            check_value(f"{place}.{shown(str(name))}", value, known.get(name))
