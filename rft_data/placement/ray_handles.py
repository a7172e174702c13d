"""The parts of Ray's objects that placements call: Ray is an optional dependency and is imported late."""

from __future__ import annotations

from concurrent.futures import Future
from types import ModuleType
from typing import Protocol

from rft_data.core.lookup import need


class Reference(Protocol):
    """A result that is not there yet (`ray.ObjectRef`)."""

    def future(self) -> Future[bytes]:
        """The result as a future of this process."""
        ...


class RemoteMethod(Protocol):
    """A method of an actor."""

    def remote(self, *arguments: object) -> Reference:
        """Call it; returns at once."""
        ...


class PlacementGroup(Protocol):
    """Resources that a cluster reserves together (`ray.util.placement_group.PlacementGroup`)."""

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until they are reserved; False if they are not by then."""
        ...


def ray_module(why: str) -> ModuleType:
    """The package `ray`.

    Args: why: what needs it, for the error.
    Raises: MissingExtraError if it is not installed.
    """
    module: ModuleType = need("ray", "ray", why)
    return module


def on_this_node(why: str) -> object:
    """The scheduling strategy of an actor whose files are on the node of this process.

    Ray puts an actor that asks for no resources on any node at random, unless it is bound to one without
    exception (`soft=False`).
    """
    strategies = need("ray.util.scheduling_strategies", "ray", why)
    here = ray_module(why).get_runtime_context().get_node_id()
    return strategies.NodeAffinitySchedulingStrategy(here, soft=False)
