"""The Hugging Face hub's cache as `huggingface_hub` lays it out on this disk: no host is asked."""

from __future__ import annotations

import os
import re
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def is_hub_id(path: str) -> bool:
    """Whether a model's path is not a folder of this machine, and has the form of an id of the hub."""
    return bool(_ID.fullmatch(path)) and not Path(path).exists()


def local_folder(path: str) -> Path | None:
    """The folder with a model's files: itself, or the newest snapshot of an id in the cache; None without."""
    return Path(path) if Path(path).is_dir() else cached_folder(path)


def cached_folder(repo: str) -> Path | None:
    """The newest snapshot of a model in the hub's cache; None where there is none."""
    if not is_hub_id(repo):
        return None
    root = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface"), "hub")
    stored = Path(root).expanduser() / f"models--{repo.replace('/', '--')}"
    main = stored / "refs" / "main"
    named = stored / "snapshots" / main.read_text().strip() if main.is_file() else None
    if named is not None and named.is_dir():
        return named
    found = [one for one in stored.glob("snapshots/*") if one.is_dir()]
    return max(found, key=lambda one: one.stat().st_mtime, default=None)
