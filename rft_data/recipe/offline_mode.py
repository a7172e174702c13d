"""The whole recipe of a run that trains on stored rows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rft_data.recipe.modes import RunRecipe
from rft_data.recipe.offline import HeldoutPairs, OfflineStage, SftStage
from rft_data.recipe.sections import Model


class OfflineRecipe(RunRecipe):
    """Train on what the buffer holds; nothing is explored."""

    mode: Literal["offline"]
    model: Model
    heldout: HeldoutPairs | None = None
    """Measured before the first stage and after each; left out: nothing is held out."""
    stages: list[OfflineStage] = Field(min_length=1)
    """One after the other; each goes on from the policy before it."""

    @model_validator(mode="after")
    def _chosen(self) -> OfflineRecipe:
        for number, stage in enumerate(self.stages):
            if isinstance(stage, SftStage) and stage.data is None:
                raise ValueError(
                    f"stage {number} ('sft') needs 'data', which says what to imitate; for example "
                    "data: {min_reward: 1.0}"
                )
        return self
