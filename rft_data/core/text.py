"""Makes untrusted text (model output, file contents) safe for a terminal, and sizes readable."""

from __future__ import annotations

_WIDTH = 100
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def escaped(text: str) -> str:
    """The whole text on one line; what is not printable is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def for_terminal(text: str) -> str:
    """Lines as they are, what is not printable escaped: ids, files and model output must not act."""
    return "\n".join(map(escaped, text.split("\n")))


def shown(text: str, width: int = _WIDTH) -> str:
    """Text on one line of at most `width` characters; what is not printable is escaped."""
    plain = escaped(text[: width + 1])
    return plain if len(plain) <= width else plain[: width - 3] + "..."


def size_text(size: float) -> str:
    """Bytes in the largest unit that leaves a number of at least one."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} {_UNITS[-1]}"
