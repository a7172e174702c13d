"""Makes untrusted text (model output, file contents) safe for a terminal."""

from __future__ import annotations

_WIDTH = 100


def escaped(text: str) -> str:
    """The whole text on one line; what is not printable is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def for_terminal(text: str) -> str:
    """Lines as they are, what is not printable escaped: ids, files and model output must not act."""
    return "\n".join(map(escaped, text.split("\n")))


def shown(text: str, width: int = _WIDTH) -> str:
    """Text on one line of at most `width` characters; what is not printable is escaped."""
    plain = escaped(text)
    return plain if len(plain) <= width else plain[: width - 3] + "..."
