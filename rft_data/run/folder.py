"""A run's folder: who may continue it, what is already done, and the books it opens.

`buffer/`, `weights/`, `checkpoints/`, `stages/`, `recipe.json`, `progress.json`, `summary.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rft_data.buffer import Buffer
from rft_data.core.errors import ResumeError
from rft_data.core.files import write_text
from rft_data.core.filters import Compare
from rft_data.core.rows import canonical_json, content_id
from rft_data.core.version import __version__
from rft_data.recipe.modes import RunRecipe
from rft_data.run import roles
from rft_data.sampler.ledger import Ledger
from rft_data.weights.versions import VersionRegistry

_FREE = ("deadlines.", "monitor.", "placement.")
"""Sections that may change when a run is continued: they do not touch what is computed."""


class Run:
    """An open run; owns its buffer until `close`."""

    def __init__(self, recipe: RunRecipe) -> None:
        """Open the folder and the buffer, new or to be continued; nothing is recorded before `begin`.

        Raises: ResumeError when the folder holds a run of another recipe; BusyError when another
            process is running it; ResumeError when a file of it is damaged.
        """
        self.recipe = recipe
        self.directory = Path(recipe.run_dir)
        self.run_id = recipe.books
        self.hash = content_id(recipe.saved())
        self.buffer = Buffer(recipe.buffer.uri, durability=recipe.buffer.durability)
        try:
            self.attempt = self._attempt()
            self.progress: dict[str, Any] = self._read("progress.json") or {
                "heldout_accuracy": {},
                "by_difficulty": {},
                "seconds": {},
                "done": [],
            }
            self.summary = self._read("summary.json")
            self.versions = VersionRegistry(self.buffer, self.run_id, self.directory / "weights")
            max_uses = roles.max_uses_of(recipe)
            self.ledger = Ledger(self.buffer, self.run_id, self.attempt, max_uses=max_uses)
        except BaseException:
            self.buffer.close()
            raise

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time by phase, over all starts."""
        seconds: dict[str, float] = self.progress["seconds"]
        return seconds

    def _attempt(self) -> int:
        """How often this run was started before."""
        before = self.buffer.read("runs", where=Compare("run_id", "eq", self.recipe.name)).to_pylist()
        lines = differences(json.loads(before[-1]["recipe"]), self.recipe.saved()) if before else []
        lines = [line for line in lines if not line.startswith(_FREE)]
        if lines:
            raise ResumeError(
                "\n".join(
                    [
                        f"{self.directory} holds run '{self.recipe.name}' of another recipe; "
                        "these fields differ and must not change:",
                        *(f"  {line}" for line in lines),
                        "continue with the recipe it began with, or start over with --fresh.",
                    ]
                )
            )
        return len(before)

    def _read(self, name: str) -> Any:
        path = self.directory / name
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text())
        except ValueError as err:
            raise ResumeError(f"{path} is damaged ({err}); remove that file and resume.") from err

    def begin(self) -> None:
        """Record this start and its recipe; environment references stay references."""
        saved = self.recipe.saved()
        self.directory.mkdir(parents=True, exist_ok=True)
        write_text(self.directory / "recipe.json", json.dumps(saved, indent=1))
        row = {
            "run_id": self.recipe.name,
            "recipe": saved,
            "recipe_hash": self.hash,
            "code_version": __version__,
            "attempt": self.attempt,
        }
        self.buffer.add_rows("runs", [row])

    def once(self, phase: str, act: Callable[[], None]) -> bool:
        """Do a phase unless a former start of this run completed it; returns whether it was done now."""
        new = phase not in self.progress["done"]
        if new:
            act()
            self.progress["done"].append(phase)
        write_text(self.directory / "progress.json", canonical_json(self.progress))
        return new

    def finish(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`: from now on the run is complete."""
        self.summary = summary
        write_text(self.directory / "summary.json", json.dumps(summary, indent=1))

    def close(self) -> None:
        """Give the buffer up; idempotent."""
        self.buffer.close()


def differences(before: Any, after: Any, at: str = "") -> list[str]:
    """`field: old -> new` for every leaf that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(set(before) | set(after))
        return [
            line
            for key in keys
            for line in differences(before.get(key), after.get(key), f"{at}.{key}" if at else key)
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, f"{at}.{i}")]
    return [] if before == after else [f"{at}: {before!r} -> {after!r}"]
