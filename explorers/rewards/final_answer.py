"""Finds the final answer of a completion."""

from __future__ import annotations

import re

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_BOXED = "\\boxed{"
_SAID = re.compile(r"(?:^|\W)answer(?:\s+is\b)?\s*:?\s*\**\s*", re.IGNORECASE)


def final_answer(completion: str, marker: str | None = None) -> str:
    """The text that counts as the answer, without spaces around it.

    With a marker: the rest of the line after the last one; empty when there is none. Without: the last
    `<answer>...</answer>`, `\\boxed{...}` or line after `####`, in this order, else the whole completion.
    """
    if marker is not None:
        _, found, rest = completion.rpartition(marker)
        return rest.partition("\n")[0].strip() if found else ""
    tagged = _TAGGED.findall(completion)
    if tagged:
        return str(tagged[-1]).strip()
    boxed = last_boxed(completion)
    if boxed is not None:
        return boxed.strip()
    _, found, rest = completion.rpartition("####")
    return rest.partition("\n")[0].strip() if found else completion.strip()


def last_boxed(text: str) -> str | None:
    """Content of the last whole `\\boxed{...}`, braces within it matched; None without one."""
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    depth, first = 1, start + len(_BOXED)
    for place in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[first:place]
    return None


def last_said(text: str) -> str | None:
    """The rest of the line after the last `answer is` or `answer:`; None without one."""
    last = None
    for last in _SAID.finditer(text):  # noqa: B007 - only the last one counts
        pass
    return None if last is None else text[last.end() :].partition("\n")[0]
