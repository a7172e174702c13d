"""Notices that all rewards of a run are equal, step after step: nothing is learned then, without an error."""

from __future__ import annotations

from collections.abc import Sequence

_STEPS = 3
"""Steps with one reward for everything after which a warning is due."""
_AGAIN = 50
"""Steps after which it is repeated."""


class FlatRewards:
    """Counts steps in which every rollout had the same reward."""

    def __init__(self) -> None:
        self._value: float | None = None
        self._steps = 0

    def after(self, rewards: Sequence[Sequence[float | None]]) -> str:
        """A warning that is due after a step, else an empty text.

        Args: rewards: of each group that arrived since the last step, None where there is none.
        """
        known = {reward for group in rewards for reward in group if reward is not None}
        if not known:
            return ""  # groups of an earlier round were trained
        if len(known) > 1:
            self._value, self._steps = None, 0
            return ""
        [value] = known
        self._steps = self._steps + 1 if value == self._value else 1
        self._value = value
        if self._steps != _STEPS and self._steps % _AGAIN:
            return ""
        return (
            f"every rollout of the last {self._steps} steps has the reward {value:g}: there is nothing to "
            "learn from. Compare completions with the tasks' answers (rft buffer head BUFFER --table "
            "experiences): does the answer come in the form that the reward reads (docs/rewards.md; "
            "exact_answer wants '#### 56000'), does max_tokens leave room for it, are the tasks far too hard "
            "or too easy?"
        )
