"""A project folder to start from: the files of `recipes/project` under a name."""

from __future__ import annotations

import re
from pathlib import Path

from rft_data.recipe.copying import SCHEMA_FILE, SCHEMA_LINE, write_new
from rft_data.recipe.json_schema import schema_text
from rft_data.recipe.shipped import shipped_folder
from rft_data.recipe.yaml_text import as_text

_FILES = ("recipe.yaml", "data.jsonl", "reward.py", "test_reward.py", "README.md")


def write_project(folder: Path) -> list[Path]:
    """Write recipe, data, reward, its test and a README into `folder`; returns the files.

    Raises: RecipeError when another file is in the way; nothing is written then.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._") or "project"
    source = shipped_folder() / "project"
    files = {folder / file: (source / file).read_text().replace("__NAME__", name) for file in _FILES}
    recipe = files[folder / "recipe.yaml"].replace(f"\nname: {name}\n", f"\nname: {as_text(name)}\n")
    files[folder / "recipe.yaml"] = SCHEMA_LINE + recipe
    files[folder / SCHEMA_FILE] = schema_text()
    write_new(files)
    return list(files)
