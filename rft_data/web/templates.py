"""The templates of the page, which write every value as text."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from rft_data.web import words

STATIC = Path(__file__).parent / "static"


def environment() -> Environment:
    """Templates that escape, refuse unknown names, and show control characters (`words.finished`)."""
    made = Environment(
        loader=PackageLoader("rft_data.web", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=words.finished,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(words.FILTERS)
    return made
