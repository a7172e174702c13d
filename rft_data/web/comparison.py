"""Several runs beside each other: their numbers on the same axes, and where their recipes differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from rft_data.core.errors import RecipeError
from rft_data.recipe.leaves import dotted, leaves
from rft_data.run.status import stored_recipe, stored_run_id
from rft_data.web.chart import Overlay, overlay
from rft_data.web.runs import FIRST, metrics, opened, pairs
from rft_data.web.subjects import Subjects

MOST = 4
"""Runs that are compared at a time."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two to four runs."""

    keys: tuple[str, ...]
    overlays: tuple[Overlay, ...]
    settings: tuple[tuple[str, tuple[str, ...]], ...]
    """Each key of the recipes whose value is not the same in all of them, with the value by run."""


def compare(subjects: Subjects, keys: Sequence[str]) -> Comparison:
    """Raises: RecipeError unless two to four runs are named; MissingFileError for one that is not shown."""
    folders = _folders(subjects, keys)
    found = [overlay(name, series) for name, series in compared_numbers(subjects, keys).items()]
    return Comparison(
        tuple(folders), tuple(one for one in found if one is not None), _settings(list(folders.values()))
    )


def compared_numbers(
    subjects: Subjects, keys: Sequence[str]
) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """By name of a number, and then by run, its values by step. Raises: what `compare` raises."""
    frames = {key: _numbers(subjects, key, folder) for key, folder in _folders(subjects, keys).items()}
    return {
        name: {
            key: pairs(frame, name)
            for key, frame in frames.items()
            if frame is not None and name in frame.columns
        }
        for name in FIRST
    }


def _folders(subjects: Subjects, keys: Sequence[str]) -> dict[str, Path]:
    keys = tuple(dict.fromkeys(keys))
    found = {key: folder for key in keys if (folder := subjects[key].run_dir) is not None}
    if not 2 <= len(keys) <= MOST or len(found) < len(keys):
        raise RecipeError(f"{len(keys)} are named; choose 2 to {MOST} runs (buffers have no numbers).")
    return found


def _numbers(subjects: Subjects, key: str, folder: Path) -> pd.DataFrame | None:
    buffer = opened(subjects, key)
    if buffer is None:
        return None
    return metrics(buffer, stored_run_id(folder), FIRST)


def _settings(folders: Sequence[Path]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    sides = [{dotted(key): value for key, value in leaves(stored_recipe(folder))} for folder in folders]
    found = []
    for key in dict.fromkeys(key for side in sides for key in side):
        values = tuple(json.dumps(side[key], ensure_ascii=False) if key in side else "" for side in sides)
        if len(set(values)) > 1:
            found.append((key, values))
    return tuple(found)
