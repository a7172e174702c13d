"""How published weights reach the explorers of a run: the recipe's way, or one that its placement suggests.

Some ways need a sender beside the run, which is named here and imported only when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rft_data.core.lookup import load
from rft_data.core.roles import RoleSpec, WeightSender
from rft_data.core.rows import WeightRef
from rft_data.recipe.running import PlacementSection
from rft_data.recipe.sections import EngineSection
from rft_data.recipe.transports import named_way

_SENDERS = {
    "ray": "explorers.transports.ray_store:RaySender",
    "gloo": "explorers.transports.group_sender:GroupSender",
    "nccl": "explorers.transports.group_sender:GroupSender",
    "ipc": "explorers.transports.sender:WeightSender",
}


@dataclass(frozen=True, slots=True)
class Way:
    """How the weights travel."""

    use: str
    """One of `explorers.transports.TRANSPORTS`."""
    why: str
    """Reason for the choice, and who made it."""
    name: str
    """Name of what is started for it, unique among runs and their attempts."""
    chosen: bool = False
    """Whether the placement suggested it: then `nccl` may give way to `gloo`, and the recipe's may not."""

    def as_json(self) -> dict[str, str]:
        """For the run's summary."""
        return {"use": self.use, "why": self.why}


class Sending(WeightSender, Protocol):
    """A sender that the run has started."""

    def arguments(self, explorer: str) -> Mapping[str, object]:
        """Constructor arguments of the transport of this explorer's engine."""
        ...


def chosen_way(engine: EngineSection, place: PlacementSection, run_id: str, attempt: int) -> Way:
    """The way that a recipe names, or with `auto` the one that fits its placement."""
    use, why = named_way(engine, place)
    chosen = engine.transport.use != use
    return Way(use, why, f"weights-{run_id}-{attempt}", chosen)


def make_sender(way: Way, host: Callable[[], str]) -> Sending | None:
    """Start the sender that a way needs; None if it needs none.

    `host`: the address of the run's node that its explorers can reach.
    """
    if way.use not in _SENDERS:
        return None
    kind: Any = load(_SENDERS[way.use], "weight sender")
    if way.use == "ray":
        return RaySending(kind(way.name), way.name)
    if way.use == "ipc":
        return TransferSending(kind, way.use, host())
    return GroupSending(kind(way.use, host(), or_gloo=way.chosen))


def with_sender(spec: RoleSpec, sending: Sending | None) -> RoleSpec:
    """An explorer's spec whose engine finds the sender."""
    if sending is None:
        return spec
    plan: Any = spec.arguments["plan"]
    transport = {**plan["engine"]["transport"], **sending.arguments(spec.name)}
    engine = {**plan["engine"], "transport": transport}
    return replace(spec, arguments={**spec.arguments, "plan": {**plan, "engine": engine}})


class RaySending:
    """Puts each version into Ray's object store, once."""

    def __init__(self, sender: Any, actor: str) -> None:
        """`actor`: the name under which explorers find it."""
        self._sender = sender
        self._actor = actor
        self._last: WeightRef | None = None

    def arguments(self, explorer: str) -> Mapping[str, object]:
        """Name of the actor; the same for all explorers."""
        return {"actor": self._actor}

    def offer(self, ref: WeightRef, explorers: Sequence[str]) -> None:
        """Have these explorers find the version; they fetch it when they load it."""
        if ref != self._last:
            self._sender.offer(ref)
            self._last = ref

    def close(self) -> None:
        """End the actor."""
        self._sender.close()


class GroupSending:
    """Broadcasts each version to the explorers that ask for it."""

    def __init__(self, sender: Any) -> None:
        """`sender`: a `GroupSender`."""
        self._sender = sender

    def arguments(self, explorer: str) -> Mapping[str, object]:
        """The sender's address, and the explorer's name for it."""
        return {"host": self._sender.host, "port": self._sender.port, "explorer": explorer}

    def offer(self, ref: WeightRef, explorers: Sequence[str]) -> None:
        """Have these explorers find the version; they ask for it when they load it."""
        self._sender.offer(ref, explorers)

    def close(self) -> None:
        """Stop sending."""
        self._sender.close()


class TransferSending:
    """Hands each version to every explorer by itself, by vLLM's weight transfer."""

    def __init__(self, kind: Any, backend: str, host: str) -> None:
        """`kind`: the class `WeightSender`. `backend`, `host`: its own."""
        self._kind = kind
        self._backend, self._host = backend, host
        self._senders: dict[str, Any] = {}

    def arguments(self, explorer: str) -> Mapping[str, object]:
        """The address of this explorer's sender, which is started."""
        sender = self._senders[explorer] = self._kind(self._backend, 1, host=self._host)
        return {"host": self._host, "port": sender.port}

    def offer(self, ref: WeightRef, explorers: Sequence[str]) -> None:
        """Have these explorers find the version; each may have been restarted since the last one."""
        for name in explorers:
            self._senders[name].regroup(1)
            self._senders[name].offer(ref)

    def close(self) -> None:
        """Stop sending."""
        for sender in self._senders.values():
            sender.close()
