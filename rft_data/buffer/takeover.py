"""Takes a table over from an owner that may still be at work."""

from __future__ import annotations

from typing import Any


def take_over(opened: Any, uri: str) -> None:
    """Restore the newest version of a table as a new one: an append on an older version fails from now on.

    `opened`: the newest version as a Lance dataset. Rows that the other owner stores meanwhile are kept.
    """
    import lance

    before = opened.version
    opened.restore()
    newest = lance.dataset(uri)
    if newest.version != before + 1:  # the former owner committed meanwhile; keep its rows
        theirs: Any = lance.dataset(uri, version=newest.version - 1)
        theirs.restore()
