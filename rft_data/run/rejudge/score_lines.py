"""A file of feedback that rescoring appends to, for shards that cannot all write to one buffer."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from rft_data.core.rows import Feedback


class ScoreLines:
    """Lines that `rft data feedback import` takes; a line that a kill cut off is cut away."""

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self._path = path
        text = path.read_bytes() if path.is_file() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            os.truncate(path, len(whole))
        rows = [json.loads(line) for line in whole.splitlines()]
        self._rows = {(row["experience_id"], row["author"], row["key"]) for row in rows}

    def known(self, key: str) -> set[tuple[str, str]]:
        """Experience and author of the lines under a key."""
        return {(experience_id, author) for experience_id, author, under in self._rows if under == key}

    def append(self, feedback: Sequence[Feedback]) -> None:
        """Write lines; returns when they are on the disk."""
        names = ("experience_id", "author", "key", "value", "text")
        lines = [{name: getattr(one, name) for name in names} for one in feedback]
        with self._path.open("a") as end:
            end.writelines(json.dumps(line) + "\n" for line in lines)
            end.flush()
            os.fsync(end.fileno())
