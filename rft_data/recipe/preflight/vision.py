"""Parts of a recipe that cannot work with a model that looks at images; its folder says whether it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rft_data.core.model_folder import takes_images
from rft_data.core.words import Mode
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.tree import Tree, entries, value
from rft_data.recipe.presets import OFFLINE, with_preset


def vision_problems(tree: Tree) -> Iterator[Problem]:
    """Settings that no stage and no engine supports with such a model."""
    path = value(tree, "model", "path")
    if not isinstance(path, str) or not takes_images(Path(path)):
        return
    looks = f"the model in '{path}' looks at images"
    resolved = with_preset(tree, explores=tree.get("mode") == Mode.ONLINE, check_only=True)
    for loc, stage in entries(resolved if isinstance(resolved, dict) else tree, "stages"):
        if stage.get("algorithm") == "reward_model":
            yield Problem((*loc, "algorithm"), f"{looks}, and a reward model is made from a model of text")
        if stage.get("algorithm") in OFFLINE:
            continue
        for part in ("critic", "lora"):
            if stage.get(part) is not None:
                yield Problem(
                    (*loc, part),
                    f"{looks}, which '{part}' does not; train all weights, without a critic",
                )
    if value(tree, "explorer", "engine", "swap") == "recompute":
        yield Problem(
            ("explorer", "engine", "swap"),
            f"{looks}, and vLLM would go on with what old weights saw in them; use drain or continue",
        )
