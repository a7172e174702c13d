"""An environment of Gymnasium as text: what it shows, which action a reply means, which state it is in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np

from explorers.environments.text_environment import (
    WHOLE,
    Shown,
    compiled,
    last_match,
    task_seed,
    words_pattern,
)
from rft_data.core.canonical import content_id
from rft_data.core.errors import RecipeError
from rft_data.core.json_types import Json
from rft_data.core.rows import Task

if TYPE_CHECKING:
    from gymnasium import Env, Space

_HIGHLIGHT = re.compile(r"\x1b\[\d+m(.)\x1b\[0m")
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")
_INTEGER = r"-?\d+"
_SPACES = ("Discrete", "Text", "MultiDiscrete", "MultiBinary", "Box")


class GymnasiumText:
    """One environment. `action` reads an action out of a reply by a declared rule.

    The rule: the last match of `pattern` in the reply is the action (its first group, where it has one). It
    is a word of `actions`, whatever its case, where they are given; else an integer for a Discrete space, the
    text for a Text space, JSON for any other.
    """

    def __init__(
        self, env: Env, actions: Mapping[str, object] | None = None, pattern: str | None = None
    ) -> None:
        """`pattern`: None: the words of `actions`, else an integer, else the whole reply.

        Raises: RecipeError for a space or a rule that no text can lead to.
        """
        self._env = env
        self._space = env.action_space
        self._kind = type(self._space).__name__
        self._actions = {word.lower(): action for word, action in (actions or {}).items()}
        _check(self._space, self._actions)
        self._pattern = compiled(self._rule() if pattern is None else pattern)

    def reset(self, task: Task) -> Shown:
        """Begin anew for a task, with its seed and `metadata["options"]`."""
        options = deepcopy(task.metadata.get("options"))
        observation, _ = self._env.reset(seed=task_seed(task), options=options)
        return self._shown(observation)

    def action(self, reply: str) -> object:
        """The action that a reply means; None when it means none that the environment takes."""
        text = last_match(self._pattern, reply)
        action = None if text is None else self._read(text)
        return action if action is not None and self._space.contains(action) else None

    def step(self, action: object) -> Shown:
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return self._shown(observation, float(reward), bool(terminated or truncated))

    def close(self) -> None:
        self._env.close()

    @property
    def wanted(self) -> str:
        """Form of a reply, in words for the model."""
        if self._actions:
            return f"one of: {', '.join(self._actions)}"
        return f"an action of {self._space}"

    def _shown(self, observation: object, reward: float = 0.0, done: bool = False) -> Shown:
        value = _plain(observation)
        if isinstance(observation, str):
            text = observation
        elif self._env.render_mode == "ansi":
            text = _ESCAPE.sub("", _HIGHLIGHT.sub(r"[\1]", str(self._env.render()))).strip("\n")
        else:
            text = json.dumps(value)
        return Shown(text, content_id(value), reward, done)

    def _rule(self) -> str:
        if self._actions:
            return words_pattern(self._actions)
        return _INTEGER if self._kind == "Discrete" else WHOLE

    def _read(self, text: str) -> object:
        """The value that a text stands for; None when it stands for none."""
        if self._actions:
            return self._actions.get(text.lower())
        if self._kind == "Text":
            return text
        try:
            value = json.loads(text)
            return int(value) if self._kind == "Discrete" else np.asarray(value, dtype=self._space.dtype)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None


def _check(space: Space, actions: Mapping[str, object]) -> None:
    """Raises: RecipeError when texts cannot stand for the actions of a space."""
    if type(space).__name__ not in _SPACES:
        raise RecipeError(
            f"the environment's actions are {space}; text can stand for {', '.join(_SPACES)}: give it a "
            "gymnasium.ActionWrapper with one of these."
        )
    wrong = {word: action for word, action in actions.items() if not space.contains(action)}
    if wrong:
        raise RecipeError(f"'actions' has {wrong}, which {space} does not have; correct them.")


def _plain(value: object) -> Json:
    """An observation as JSON values."""
    if isinstance(value, np.ndarray | np.generic):
        plain: Json = value.tolist()
        return plain
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
