"""Roles of a run (explorer, trainer, ...), and the placements that start them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rft_data.core.rows import WeightRef
from rft_data.core.words import HubRole


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """How to make a role anywhere."""

    name: str
    factory: str
    """`package.module:callable`, called as factory(buffer=BufferClient, **arguments)."""
    arguments: Mapping[str, Any]
    """JSON values."""
    cpus: float = 1.0
    gpus: float = 0.0
    hub_role: HubRole = HubRole.READER
    """Its rights at the run's hub, in a process of its own."""
    gpu_group: str = ""
    """Roles of one group use the same GPUs in turns; empty: its own."""
    beside: int = 0
    """How many more places with the same CPUs and GPUs are kept for it in a cluster, for actors that it
    starts itself (the other ranks of a trainer)."""


class WeightSender(Protocol):
    """Gives published weights to explorers that do not read them from the run's folder."""

    def offer(self, ref: WeightRef, explorers: Sequence[str]) -> None:
        """Called before these explorers, by name, are asked to load a version.

        Raises: StalledError, EngineError when it cannot be sent.
        """
        ...

    def close(self) -> None:
        """Stop; idempotent."""
        ...


class Role(Protocol):
    """A running role, wherever it runs."""

    @property
    def name(self) -> str:
        """The spec's name."""
        ...

    @property
    def incarnation(self) -> int:
        """How often it was restarted."""
        ...

    def call(self, method: str, returns: object, *, deadline_s: float, **arguments: object) -> Future[Any]:
        """Call a method of the role; its coroutines run beside each other, other methods one at a time.

        Args: returns: the type its result is read as.
        The future raises the role's own RftError, RoleDiedError, or StalledError past the deadline.
        """
        ...

    def restart(self) -> Future[None]:
        """End it and start it again from its spec; calls in flight fail with RoleDiedError.

        The future ends when the role is ready, or with what `Placement.start` raises; then there is none, and
        it may be restarted again.
        """
        ...

    def close(self) -> None:
        """Ask it to end, then end it; idempotent."""
        ...


class Placement(Protocol):
    """The place in which roles run; also an `ElasticPlacement` if roles may come and go during a run."""

    @property
    def overlaps(self) -> bool:
        """Whether roles run beside each other and beside the caller."""
        ...

    def preflight(self, specs: Sequence[RoleSpec]) -> list[str]:
        """Compare the resources that these roles need with those there are; returns warnings.

        Raises: RftError when they can never run here.
        """
        ...

    def start(self, spec: RoleSpec) -> Role:
        """Start a role; returns when it is ready, and raises what its factory raised."""
        ...

    def close(self, *, now: bool = False) -> None:
        """End every role started here; with `now` without asking it to close first. Idempotent."""
        ...


@runtime_checkable
class ElasticPlacement(Placement, Protocol):
    """A placement whose roles may come and go while a run goes on. None of its own methods waits."""

    def reserve(self, spec: RoleSpec) -> bool:
        """Whether the role may be started now; a cluster without room for it is asked for more."""
        ...

    def release(self, name: str) -> None:
        """Ask for no room any more for a role that was closed, or never started; idempotent."""
        ...

    def drained(self) -> Container[str]:
        """Names of the roles whose node is about to be taken away."""
        ...
