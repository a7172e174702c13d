"""The settings of a stage's `critic: {...}`, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import suggest
from trainers.models.options import section

_KINDS = ("shared", "separate")


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """The stage's `critic: {...}`, checked.

    Raises: RecipeError for values that make no sense.
    """

    use: str = "shared"
    """`shared`: a head on the policy's own hidden states; `separate`: a second model."""
    learning_rate: float = 1e-5
    """Learning rate of the head (shared) or of the whole critic (separate); it follows the policy's
    schedule."""
    coef: float = 0.1
    """Factor of the value loss; with `shared` it weighs what the backbone learns."""
    clip: float | None = 0.2
    """How far, in units of reward, one step gains from moving a value; None: without a limit."""
    warmup_steps: int = 0
    """How many optimizer steps, at the start of the run, train the critic alone."""

    def __post_init__(self) -> None:
        if self.use not in _KINDS:
            raise RecipeError(
                f"critic.use is '{self.use}', must be one of {', '.join(_KINDS)}."
                f"{suggest(str(self.use), _KINDS)}"
            )
        positive = {"learning_rate": self.learning_rate, "coef": self.coef, "clip": self.clip}
        for name, value in positive.items():
            if not (value is None and name == "clip") and not _is_positive(value):
                raise RecipeError(f"critic.{name} is {value!r}, must be a finite number above 0.")
        if (
            not isinstance(self.warmup_steps, int)
            or isinstance(self.warmup_steps, bool)
            or self.warmup_steps < 0
        ):
            raise RecipeError(f"critic.warmup_steps is {self.warmup_steps!r}, must be a whole number >= 0.")


def _is_positive(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )


def checked_critic_settings(settings: Mapping[str, object]) -> CriticSettings:
    """The settings of a stage's `critic`.

    Raises: RecipeError for unknown keys and bad values.
    """
    return section(CriticSettings, "critic", settings)
