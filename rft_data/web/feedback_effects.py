"""Says in sentences what feedback of a person will change: the parts of a run's recipe that read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rft_data.core.words import FeedbackKey, Mode

NOTHING = "nothing in this run's recipe reads it; it is stored, and a later recipe may."
NO_RECIPE = "this is a buffer without a run; a recipe that reads it may use it."
_MAPPER = "feedback_mapper"
_OPTIONS = {"key": FeedbackKey.REWARD.value, "into": "reward"}
Recipe = Mapping[str, Any]


def where_it_counts(recipe: Recipe | None, key: str) -> list[str]:
    """Readers of feedback under a key; one sentence that says so where nothing does.

    Args: recipe: as the run stored it; None: of no run.
    """
    if recipe is None:
        return [NO_RECIPE]
    return [*_operators(recipe, key), *_stages(recipe, key), *_selector(recipe, key)] or [NOTHING]


def _operators(recipe: Recipe, key: str) -> Iterator[str]:
    for place, entry in enumerate(recipe.get("experience_ops") or [], 1):
        given = entry.get(_MAPPER) if isinstance(entry, Mapping) else None
        if not isinstance(given, Mapping) or {**_OPTIONS, **given}["key"] != key:
            continue
        into = {**_OPTIONS, **given}["into"]
        what = f"a column that later operators read (feedback_{key})" if into == "stats" else f"the {into}"
        yield f"operator {place}, {_MAPPER}, makes it {what} when the row's group is judged."
        waits = recipe.get("rewards")
        if isinstance(waits, Mapping) and into != "stats":
            yield (
                "groups whose rewards are still to come wait for it, at most "
                f"{waits.get('wait_s', 0):g} s (rewards.wait_s)."
            )


def _stages(recipe: Recipe, key: str) -> Iterator[str]:
    for place, stage in enumerate(recipe.get("stages") or []):
        algorithm, data = stage.get("algorithm", ""), stage.get("data") or {}
        named = f"stage {place}, {algorithm},"
        if algorithm in ("sft", "kto"):
            if data.get("feedback") == key:
                yield f"{named} takes it as the row's score, instead of its reward."
            if key == FeedbackKey.EDIT and "expert" in data.get("sources", ["expert"]):
                yield f"{named} trains on the corrected answer, an expert's row."
        elif algorithm in ("dpo", "reward_model"):
            stored = data.get("pairs", "stored") == "stored"
            if stored and key in (FeedbackKey.EDIT, FeedbackKey.PREFERRED):
                yield f"{named} trains on the pair that it makes."
        else:
            continue
        if key == FeedbackKey.QUARANTINE:
            yield f"{named} leaves the row out."


def _selector(recipe: Recipe, key: str) -> Iterator[str]:
    selector = recipe.get("selector")
    if key == FeedbackKey.RETIRE_TASK and recipe.get("mode") == Mode.ONLINE and isinstance(selector, Mapping):
        yield (
            f"selector {selector.get('use', '')} no longer draws the task from the run's next checkpoint on, "
            "nor in a new run on this buffer."
        )
