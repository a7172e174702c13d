"""A recipe's reward for completions, one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from types import TracebackType

from explorers.limits import recipe_limits
from explorers.rewards.composition import RewardColumns
from explorers.rewards.scoring import Rewards, make_rewards
from rft_data.core.lookup import FILE_SUFFIX, own_file
from rft_data.core.rows import Task
from rft_data.recipe.modes import ExplorerRecipe
from rft_data.recipe.rewards import RewardComponent
from rft_data.run.programs import SandboxPlace, rewards_in_sandbox

log = logging.getLogger(__name__)


_MARKED = ("exact_answer", "answer_format")
_MARKER = "####"


def marker_hint(
    rewards: Sequence[RewardComponent], task: Task, completion: str, parts: Mapping[str, float]
) -> str:
    """The line to write for a reward whose marker is missing in the answers; else empty."""
    for one in rewards:
        marker = str(one.args.get("marker", _MARKER))
        if one.use in _MARKED and parts.get(one.stored_as) == 0.0 and marker not in completion:
            answer = (task.answer or "").rpartition(marker)[2].strip() or "ANSWER"
            return (
                f"'{one.use}' reads what follows '{marker}', and the completion has none: '{marker} "
                f"{answer}' would count. Ask for that form in the prompt, or take 'number' or 'math_verify', "
                "which read other forms (docs/rewards.md)"
            )
    return ""


class KeptRewards:
    """A recipe's rewards, built once, and again when one of their files changes; a context manager."""

    def __init__(self, recipe: ExplorerRecipe) -> None:
        """Nothing is built before the first completion."""
        self._section = recipe.explorer
        paths = (one.use.rpartition(":")[0] for one in self._section.reward)
        self._files = [own_file(path) for path in paths if path.endswith(FILE_SUFFIX)]
        self._built: tuple[Rewards, list[int]] | None = None
        self._opened = ExitStack()
        self._loop = asyncio.Runner()

    def score(self, task: Task, completion: str) -> RewardColumns:
        """The reward columns of a row with this completion: `reward`, `reward_parts`, `unscored_reason`.

        Raises: what building a reward raises; SandboxError.
        """
        changed = [path.stat().st_mtime_ns if path.is_file() else 0 for path in self._files]
        if self._built is None or self._built[1] != changed:
            if self._built is not None:
                log.info("a file of the rewards has changed; they are built anew")
                self._built = None
                self._opened.close()
            limits = recipe_limits(self._section.limits, self._section.group_size)
            made = make_rewards(rewards_in_sandbox(self._section, SandboxPlace()), limits)
            self._built = self._opened.enter_context(closing(made)), changed
        return self._loop.run(self._built[0].score(task, completion))

    def __enter__(self) -> KeptRewards:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()
        self._loop.close()
