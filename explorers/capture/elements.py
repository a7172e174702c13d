"""How many values a request may have, and the plainest form of the lists in it.

vLLM's server looks at each of them in the event loop that all clients share, a wrong one in hundreds of ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from explorers.capture.refused import Refused

MOST_VALUES = 1 << 15
"""Most items of lists and fields of objects in a request, those of `prompt` apart: a chat of 1,000 turns with
calls has 14,000, and 100 tools have about 4,000."""
MOST_ITEMS = 4096
"""Most messages, tools, or items of another list, `prompt` apart."""
MOST_IDS = 1 << 20
"""Most values of `prompt`, which may be a list of token ids."""
_ITEMS: Mapping[str, tuple[str, ...]] = {"messages": ("role",), "input": ("role", "type"), "tools": ()}
"""Lists of objects, which have text in one of these fields."""


def check_elements(body: Mapping[str, object]) -> None:
    """Raises: Refused for more values than a request may have, and for an item without its form."""
    left = MOST_VALUES
    for name, value in body.items():
        most = MOST_IDS if name == "prompt" else left
        count = _values(value, most)
        if count > most:
            most = MOST_IDS if name == "prompt" else MOST_VALUES
            raise Refused(
                name,
                f"with '{name}' the request has more than {most} values (items of lists, fields of "
                "objects); send fewer.",
            )
        left -= count if name != "prompt" else 0
        if isinstance(value, list) and name != "prompt":
            _check_list(name, value)


def _values(value: object, most: int) -> int:
    """How many values are inside one; about `most` where there are more."""
    count, waiting = 0, [value]
    while waiting and count <= most:
        one = waiting.pop()
        inside = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        count += len(inside)
        waiting += [deeper for deeper in inside if isinstance(deeper, dict | list)]
    return count


def _check_list(name: str, items: Sequence[object]) -> None:
    """Raises: Refused for a list that is too long, and for an item that has not its form."""
    if len(items) > MOST_ITEMS:
        raise Refused(name, f"'{name}' has {len(items)} items; at most {MOST_ITEMS} may be in a request.")
    if name in _ITEMS:
        for place, item in enumerate(items):
            _check_message(f"{name}[{place}]", item, _ITEMS[name])


def _check_message(place: str, item: object, told: tuple[str, ...]) -> None:
    """Raises: Refused for an item, or a part of its content, that has not its form."""
    _check_object(place, item, told)
    content = item.get("content") if isinstance(item, dict) else None
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, str):
            _check_object(f"{place}.content[{number}]", part, ("type",))


def _check_object(place: str, item: object, told: tuple[str, ...]) -> None:
    """Raises: Refused for what is no object with text in one of the fields `told`."""
    if not isinstance(item, dict):
        raise Refused(place, f"'{place}' is JSON of type {type(item).__name__}; wanted an object.")
    if told and not any(isinstance(item.get(name), str) for name in told):
        wanted = " or ".join(f"'{name}'" for name in told)
        raise Refused(place, f"'{place}' has no {wanted} that is text.")
