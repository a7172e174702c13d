"""A run in a buffer which another process owns: through its hub, that of a running run or `rft hub`."""

from __future__ import annotations

import json
import os

from rft_data.core.errors import RecipeError
from rft_data.core.filters import Compare
from rft_data.core.reader import BufferReader
from rft_data.core.words import HubRole, Mode
from rft_data.placement.hub.access import narrowed, parse_token
from rft_data.placement.hub.client import HUB_TOKEN, HubClient


def attach(address: str, name: str, *, owns: bool) -> tuple[HubClient, str]:
    """A client of the hub at `address` for the run `name`, and its token.

    Args: owns: whether the run writes rows and makes tokens for its explorers: then it needs the secret.
    Raises: RecipeError without a token, or the secret, in the environment.
    """
    if owns:
        secret = hub_secret("buffer.uri")
        return HubClient(address, secret), secret
    given = os.environ.get(HUB_TOKEN, "")
    if not given:
        raise RecipeError(
            f"'buffer.uri' is the hub {address} of another run, and the environment variable {HUB_TOKEN} is "
            "not set; set it to the token that `rft token trainer --name NAME` prints where the secret is."
        )
    token = narrowed(given, HubRole.TRAINER, name)
    return HubClient(address, token), token


def hub_secret(key: str) -> str:
    """The secret of a hub that several use, from the environment; `key`: of the recipe that needs it.

    Raises: RecipeError without one.
    """
    secret = os.environ.get(HUB_TOKEN, "")
    if not secret or parse_token(secret) is not None:
        found = "holds the token of a client" if secret else "is not set"
        raise RecipeError(
            f"'{key}' needs the secret of a hub, and the environment variable {HUB_TOKEN} {found}; "
            "set it to the secret of that hub, one of your own if this run starts it. Others get tokens that "
            "are made from it (`rft token`)."
        )
    return secret


def planned_groups(buffer: BufferReader, run_id: str) -> int:
    """How many groups a run of mode `explore` plays.

    Raises: RecipeError if the buffer has no such run.
    """
    starts = buffer.read("runs", ["recipe"], Compare("run_id", "eq", run_id)).to_pylist()
    recipe = json.loads(starts[-1]["recipe"]) if starts else {}
    if recipe.get("mode") != Mode.EXPLORE:
        raise RecipeError(
            f"the buffer behind the hub has no run '{run_id}' of mode 'explore'; give the name of the run "
            "that serves it as 'explored_by'."
        )
    return int(recipe["groups"])
