"""The folder on this machine in which a run works whose `run_dir` is on an object store.

It follows from the URL, so every process of a user on one machine finds the same. It may be deleted when no
process runs the run: what is in it is on the store.
"""

from __future__ import annotations

import os
from pathlib import Path

from rft_data.core.canonical import bytes_id
from rft_data.core.errors import RecipeError

SCRATCH = "RFT_SCRATCH"
"""Environment variable: the folder for such folders; `~/.cache/rft-data` unless given."""


def on_store(run_dir: str | Path) -> bool:
    """Whether a run's `run_dir` is on an object store."""
    return "://" in str(run_dir)


def on_hub(place: str) -> bool:
    """Whether a run or a buffer is given by the address of its hub."""
    return place.startswith("hub://")


def check_has_files(location: str) -> None:
    """Raises: RecipeError for a hub, which hands out a buffer's rows and none of its files."""
    if on_hub(location):
        raise RecipeError(
            f"{location} is a hub, which hands out rows and not the buffer's own files; give the buffer's "
            "folder or URL for this. `rft status`, `rft view` and `rft data feedback` take a hub."
        )


def working_folder(run_dir: str) -> Path:
    """The folder of a run on this machine: `run_dir` itself, unless that is on an object store."""
    if not on_store(run_dir):
        return Path(run_dir)
    url = run_dir.rstrip("/")
    given = os.environ.get(SCRATCH)
    root = Path(given) if given else Path.home() / ".cache" / "rft-data"
    return root.absolute() / f"{url.rpartition('/')[2]}-{bytes_id(url.encode())[:12]}"
