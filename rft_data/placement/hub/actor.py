"""The hub as a named Ray actor, and clients that find it again after Ray has restarted it.

All state of the actor is in the buffer's folder. It runs on the node that started it, where that folder is;
with a buffer in object storage on any.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import ModuleType
from typing import Protocol

from rft_data.buffer import Buffer
from rft_data.core.errors import BusyError, ConflictError, RftError
from rft_data.placement.hub.client import HubClient
from rft_data.placement.hub.server import HubServer
from rft_data.placement.ray_handles import RemoteMethod, on_this_node, ray_module

TAKEOVER_S = 60.0
"""How long a restarted actor waits until the killed one before it no longer owns the folder."""


class HubActor:
    """The class of the actor: opens the buffer and serves it."""

    def __init__(self, root: str, across_nodes: bool) -> None:
        """Serve the buffer at `root`, on loopback, or on the node's own address if `across_nodes`."""
        host = str(_ray().util.get_node_ip_address()) if across_nodes else "127.0.0.1"
        self._root = root
        self._buffer = _open(root)
        self._hub = HubServer(self._buffer, host=host).start()

    def location(self) -> tuple[str, str]:
        """(address, token) of the hub since the last start of the actor."""
        return self._hub.address, self._hub.token

    def root(self) -> str:
        """Path or address of the buffer that it serves."""
        return self._root

    def close(self) -> None:
        """Stop serving and close the buffer."""
        self._hub.close()
        self._buffer.close()


class HubHandle(Protocol):
    """Ray's handle of a `HubActor`."""

    location: RemoteMethod
    root: RemoteMethod
    close: RemoteMethod


def start(root: str, *, name: str, across_nodes: bool = False) -> HubHandle:
    """Start the hub of the buffer at `root` as the Ray actor `name`, or find it; returns its handle.

    Ray restarts it whenever its process dies.
    `across_nodes`: accept clients on other nodes, over TLS.
    Raises: ConflictError if the actor `name` serves another buffer.
    """
    ray = _ray()
    where: dict[str, object] = {}
    if "://" not in root:
        root = str(Path(root).resolve())  # a worker has another working directory
        where["scheduling_strategy"] = on_this_node("the hub as an actor")
    made = ray.remote(HubActor).options(
        name=name, get_if_exists=True, num_cpus=0, max_restarts=-1, max_task_retries=-1, **where
    )
    actor: HubHandle = made.remote(root, across_nodes)
    served = ray.get(actor.root.remote(), timeout=2 * TAKEOVER_S)
    if served != root:
        raise ConflictError(
            f"hub '{name}' serves {served} on this Ray cluster, not {root}; choose another name."
        )
    return actor


def connect(name: str) -> HubClient:
    """A client of the hub that runs as the Ray actor `name`; it looks the actor up again after a restart.

    Raises: RftError if there is no such actor, or it does not answer.
    """
    found = _locate(name, TAKEOVER_S)
    if found is None:
        raise RftError(
            f"there is no hub '{name}' on this Ray cluster, or it does not answer; "
            "start it with rft_data.placement.hub.actor.start, in the same namespace."
        )
    return HubClient(*found, locate=lambda left_s: _locate(name, left_s))


def _locate(name: str, left_s: float) -> tuple[str, str] | None:
    ray = _ray()
    try:
        address, token = ray.get(ray.get_actor(name).location.remote(), timeout=max(0.1, left_s))
    except (ray.exceptions.RayError, ValueError):  # ValueError: no actor of this name
        return None
    return address, token


def _open(root: str) -> Buffer:
    end = time.monotonic() + TAKEOVER_S
    while True:
        try:
            return Buffer(root)
        except BusyError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)


def _ray() -> ModuleType:
    return ray_module("a hub on Ray")
