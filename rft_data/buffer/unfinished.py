"""The mark of a repair at work: `repair/unfinished.json`. With it the buffer does not open for writing.

A repair removes damaged manifests before it puts the rows of their commits back. New rows in between would
take the numbers of those rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from rft_data.core.errors import IntegrityError
from rft_data.core.files import fsync, write_text

REPAIR_FOLDER = "repair"
MARK = f"{REPAIR_FOLDER}/unfinished.json"


def mark(root: Path, anew: Iterable[str]) -> None:
    """Note that a repair is at work, and the tables it has begun to make anew."""
    path = root / MARK
    path.parent.mkdir(exist_ok=True)
    write_text(path, json.dumps({"anew": sorted(anew)}))
    fsync(root)


def unmark(root: Path) -> None:
    """Note that the repair is done."""
    (root / MARK).unlink()
    fsync(root / REPAIR_FOLDER)


def unfinished(root: Path) -> bool:
    """Whether a repair is at work, or was interrupted."""
    return (root / MARK).is_file()


def begun_anew(root: Path) -> set[str]:
    """The tables that an interrupted repair had begun to make anew."""
    try:
        return {str(name) for name in json.loads((root / MARK).read_text())["anew"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()  # no repair was interrupted, or nothing but its mark is damaged


def check_finished(root: Path | str, marked: bool) -> None:
    """Refuse a buffer in the middle of a repair.

    Raises: IntegrityError.
    """
    if marked:
        raise IntegrityError(
            f"a repair of buffer {root} was interrupted (there is {MARK}): rows that it was about to put "
            f"back may be missing. Finish it: rft buffer repair {root}"
        )
