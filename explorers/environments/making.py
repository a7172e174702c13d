"""Environments that can be played as text, and what makes them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping

from explorers.environments.gymnasium_text import GymnasiumText
from explorers.environments.openenv_text import OpenEnvText
from explorers.environments.text_environment import TextEnvironment
from rft_data.core.errors import RecipeError
from rft_data.core.lookup import load, need

Maker = Callable[[], TextEnvironment]
_KINDS = (("gymnasium", "Env", GymnasiumText), ("openenv.core.env_client", "EnvClient", OpenEnvText))
"""Module and name of a class, and what plays its subclasses."""


def text_player(kind: object) -> Callable[..., TextEnvironment] | None:
    """The player of a class as text; None for one that is no environment.

    Only packages that are loaded count: a subclass of theirs has loaded them.
    """
    for module, name, player in _KINDS:
        loaded = sys.modules.get(module)
        if loaded is not None and inspect.isclass(kind) and issubclass(kind, getattr(loaded, name)):
            return player
    return None


def environment_maker(
    name: str,
    args: Mapping[str, object],
    actions: Mapping[str, object] | None = None,
    pattern: str | None = None,
) -> Maker:
    """The maker of environments: an id that Gymnasium knows, or the import path of a class.

    Raises: MissingExtraError, UnknownComponentError; RecipeError for what is no environment.
    """
    if ":" not in name:
        gymnasium = need("gymnasium", "envs", f"the environment '{name}'")
        return lambda: GymnasiumText(gymnasium.make(name, **args), actions, pattern)
    kind = load(name, "environment")
    player = text_player(kind)
    if player is None:
        raise RecipeError(
            f"environment '{name}' is neither a subclass of gymnasium.Env nor of OpenEnv's EnvClient; "
            "give one of them, or an id of Gymnasium (FrozenLake-v1)."
        )
    return lambda: player(kind(**args), actions, pattern)
