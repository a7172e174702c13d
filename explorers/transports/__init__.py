"""The weight transports by name. After each of them the engine proves the weights in the same way.

`directory` works everywhere. This module imports no transport: its libraries may not be installed.
"""

from __future__ import annotations

from collections.abc import Mapping

from explorers.transports.arrival import Transport
from rft_data.core.errors import RecipeError
from rft_data.core.lookup import load, lookup

TRANSPORTS: Mapping[str, str] = {
    "directory": "explorers.transports.directory:Directory",
    "shm": "explorers.transports.shm:SharedMemory",
    "ray": "explorers.transports.ray_store:RayStore",
    "gloo": "explorers.transports.group:gloo",
    "nccl": "explorers.transports.group:nccl",
    "ipc": "explorers.transports.transfer:ipc",
}


def recipe_transport(settings: Mapping[str, object] | None) -> Transport:
    """The transport of a recipe: `use` and its arguments; None: the published directory."""
    arguments = dict(settings or {})
    return make_transport(str(arguments.pop("use", "directory")), **arguments)


def make_transport(use: str = "directory", **arguments: object) -> Transport:
    """The transport called `use` (or one of your own, `package.module:Class`), made with `arguments`.

    Raises: UnknownComponentError for a name that is not known, RecipeError for arguments it does not take.
    """
    path = lookup(use, TRANSPORTS, "weight transport")
    kind = load(path, "weight transport") if isinstance(path, str) else path
    try:
        transport: Transport = kind(**arguments)
    except TypeError as err:
        raise RecipeError(f"explorer.engine.transport: '{use}' does not take {arguments} ({err}).") from err
    return transport
