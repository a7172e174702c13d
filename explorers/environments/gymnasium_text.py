"""An environment of Gymnasium as text: what it shows, which action a reply means, which state it is in."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import load, need
from rft_data.core.rows import Task, content_id

_HIGHLIGHT = re.compile(r"\x1b\[\d+m(.)\x1b\[0m")
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")
_INTEGER = r"-?\d+"
_SPACES = ("Discrete", "Text", "MultiDiscrete", "MultiBinary", "Box")


@dataclass(frozen=True, slots=True)
class Shown:
    """What an environment says after a reset or a step."""

    text: str
    state: str
    """Key of the state: equal for equal observations."""
    reward: float = 0.0
    done: bool = False


class GymnasiumText:
    """One environment. `action` reads an action out of a reply by a declared rule.

    The rule: the last match of `pattern` in the reply is the action (its first group, where it has one). It
    is a word of `actions`, whatever its case, where they are given; else an integer for a Discrete space, the
    text for a Text space, JSON for any other.
    """

    def __init__(
        self, env: Any, actions: Mapping[str, int] | None = None, pattern: str | None = None
    ) -> None:
        """`pattern`: None: the words of `actions`, else an integer, else the whole reply.

        Raises: RecipeError for a space or a rule that no text can lead to.
        """
        self._env = env
        self._space = env.action_space
        self._kind = type(self._space).__name__
        self._actions = {word.lower(): action for word, action in (actions or {}).items()}
        _check(self._space, self._actions)
        self._pattern = self._compiled(pattern)

    def reset(self, task: Task) -> Shown:
        """Begin anew for a task: `metadata["seed"]`, else one made from its id; `metadata["options"]`.

        All rollouts of a group begin in the same state.
        """
        seed = task.metadata.get("seed", int(task.task_id[:8], 16))
        observation, _ = self._env.reset(seed=seed, options=deepcopy(task.metadata.get("options")))
        return self._shown(observation)

    def action(self, reply: str) -> Any:
        """The action that a reply means; None when it means none that the environment takes."""
        found = None
        for found in self._pattern.finditer(reply):  # noqa: B007 - only the last one counts
            pass
        if found is None:
            return None
        text = found[1] if self._pattern.groups else found[0]
        action = self._read(text if text is not None else "")
        return action if action is not None and self._space.contains(action) else None

    def step(self, action: Any) -> Shown:
        """Take a step."""
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return self._shown(observation, float(reward), bool(terminated or truncated))

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    @property
    def wanted(self) -> str:
        """What a reply must have, in words for the model."""
        if self._actions:
            return f"one of: {', '.join(self._actions)}"
        return f"an action of {self._space}"

    def _shown(self, observation: Any, reward: float = 0.0, done: bool = False) -> Shown:
        plain = _plain(observation)
        if isinstance(observation, str):
            text = observation
        elif self._env.render_mode == "ansi":
            text = _ESCAPE.sub("", _HIGHLIGHT.sub(r"[\1]", str(self._env.render()))).strip("\n")
        else:
            text = json.dumps(plain)
        return Shown(text, content_id(plain), reward, done)

    def _compiled(self, pattern: str | None) -> re.Pattern[str]:
        if pattern is None and self._actions:
            words = "|".join(map(re.escape, sorted(self._actions, key=len, reverse=True)))
            pattern = rf"(?<!\w)(?:{words})(?!\w)"
        elif pattern is None:
            pattern = _INTEGER if self._kind == "Discrete" else r"(?s)\A\s*(.*?)\s*\Z"
        try:
            return re.compile(pattern, re.IGNORECASE)
        except re.error as err:
            raise RecipeError(
                f"the pattern {pattern!r} of an environment's actions is wrong: {err}."
            ) from err

    def _read(self, text: str) -> Any:
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


def environment_maker(name: str, args: Mapping[str, Any]) -> Callable[[], Any]:
    """What makes environments: an id that Gymnasium knows, or the import path of a class of its kind.

    Raises: MissingExtraError, UnknownComponentError; RecipeError for what is no environment.
    """
    gymnasium = need("gymnasium", "envs", f"the environment '{name}'")
    if ":" not in name:
        return lambda: gymnasium.make(name, **args)
    kind = load(name, "environment")
    if not (inspect.isclass(kind) and issubclass(kind, gymnasium.Env)):
        raise RecipeError(
            f"environment '{name}' is not a subclass of gymnasium.Env; give one, or an id (FrozenLake-v1)."
        )
    return lambda: kind(**args)


def _check(space: Any, actions: Mapping[str, int]) -> None:
    """Raises: RecipeError when texts cannot stand for the actions of a space."""
    if type(space).__name__ not in _SPACES:
        raise RecipeError(
            f"the environment's actions are {space}; text can stand for {', '.join(_SPACES)}: give it a "
            "gymnasium.ActionWrapper with one of these."
        )
    wrong = {word: action for word, action in actions.items() if not space.contains(action)}
    if wrong:
        raise RecipeError(f"'actions' has {wrong}, which {space} does not have; correct them.")


def _plain(value: Any) -> Any:
    """An observation as JSON values."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
