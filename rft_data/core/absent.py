"""Imports of a library without others that it would load only to have them at hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def absent(*packages: str) -> Iterator[None]:
    """Modules imported in this block find these packages not installed.

    Packages that were imported before stay. Write nothing but imports into the block: other threads, too,
    do not find the packages meanwhile.
    """
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: the documented way to do it
    try:
        yield
    finally:
        for package in hidden:
            sys.modules.pop(package, None)
