"""The ranks of a trainer above 0 as Ray actors, on whichever nodes have room for them.

Rank 0 is the trainer's own actor. It starts the others in the places that the run's placement keeps for it,
and they meet at its node's address. What they send each other is not encrypted.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rft_data.core.errors import RoleDiedError
from rft_data.core.lookup import need
from rft_data.core.roles import RoleSpec
from rft_data.core.words import HubRole
from rft_data.placement.cluster import beside
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.ray import RayPlacement
from trainers.ranks.launch import TORCH_VARIABLES, ask_to_end, leave_group

if TYPE_CHECKING:
    from trainers.ranks.ranks import Ranks

log = logging.getLogger(__name__)

_FOREVER_S = 10 * 365 * 86400.0
_GRACE_S = 30.0
"""When Ray says that a rank is gone: how long this trainer has to be closed before its process ends. A node
that vanished is not noticed by a collective, which would wait for it until its deadline."""
_SIOCGIFADDR = 0x8915
_INTERFACE = "GLOO_SOCKET_IFNAME"
_FACTORY = "trainers.ranks.actor_rank:rank_role"


class RankActors:
    """The other ranks of a trainer whose rank 0 is this process, a Ray actor."""

    def __init__(
        self, count: int, deadline_s: float, actors: Mapping[str, Any], hub: HubAccess | None
    ) -> None:
        """Start `count` - 1 actors and join them.

        Args:
            deadline_s: longest wait for each other in a collective, and for an answer.
            actors: `namespace` of the run's actors; `cpus` and `gpus` of each rank.
            hub: by which ranks on other nodes get the run's files.
        Raises: what starting a role raises; StalledError when they do not meet by the deadline.
        """
        from torch.distributed import TCPStore

        from trainers.ranks.ranks import Ranks

        self._before = {name: os.environ.get(name) for name in (*TORCH_VARIABLES, _INTERFACE)}
        self._placement = RayPlacement(actors["namespace"], hub)
        self._placement.place_beside("trainer", count - 1)
        self._open = True
        try:
            address = node_address()
            store = TCPStore(address, 0, count, is_master=True, wait_for_workers=False)
            for rank in range(1, count):
                place = {"rank": rank, "world": count, "address": address, "port": store.port}
                self._start(place, deadline_s, actors)
            enter(0, count, address, store.port)
            self.ranks: Ranks = Ranks.join(deadline_s, store)
        except BaseException:
            self.close(now=True)
            raise

    def close(self, *, now: bool = False) -> None:
        """End them; `now`: without asking. Idempotent."""
        if not self._open:
            return
        self._open = False
        ask = not now and self.ranks.sound
        if ask:
            ask_to_end(self.ranks)
        self._placement.close(now=not ask)
        leave_group(self._before)

    def _start(self, place: Mapping[str, Any], deadline_s: float, actors: Mapping[str, Any]) -> None:
        spec = RoleSpec(
            beside("trainer", place["rank"]),
            _FACTORY,
            {**place, "deadline_s": deadline_s},
            cpus=actors["cpus"],
            gpus=actors["gpus"],
            hub_role=HubRole.LEARNER,
        )
        role = self._placement.start(spec)
        role.call("serve", None, deadline_s=_FOREVER_S).add_done_callback(self._served)

    def _served(self, done: Future[object]) -> None:
        error = done.exception()
        if not self._open or not isinstance(error, RoleDiedError):
            return
        log.error("%s", error)
        timer = threading.Timer(_GRACE_S, self._end_process)
        timer.daemon = True
        timer.start()

    def _end_process(self) -> None:
        if self._open:
            log.error("this trainer ends: it may wait in a collective for a rank that is gone.")
            os._exit(RoleDiedError.exit_code)


def enter(rank: int, world: int, address: str, port: int) -> None:
    """Set what torch and accelerate read. Each rank sees the GPUs that Ray gave it, and no others."""
    values = (rank, world, 0, 1, address, port)
    os.environ.update(zip(TORCH_VARIABLES, map(str, values), strict=True))
    if name := _interface(node_address()):
        os.environ.setdefault(_INTERFACE, name)


def node_address() -> str:
    """The address by which Ray knows this node."""
    return str(need("ray", "ray", "ranks on Ray").util.get_node_ip_address())


def _interface(address: str) -> str:
    """The network interface with this IPv4 address, which gloo would look for under the host's name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, asked)
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
