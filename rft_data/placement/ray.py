"""Roles as Ray actors, on one machine or many. Only actors that were started here are ended here.

The caller decides whether a role that has died is started again, so Ray itself restarts none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Mapping, Sequence
from types import ModuleType

from rft_data.core.errors import BusyError, RftError
from rft_data.core.network import check_listens, ray_is_encrypted
from rft_data.core.roles import RoleSpec
from rft_data.placement.background import Background
from rft_data.placement.calls import Patience, RoleSetup
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.ray_handles import ray_module
from rft_data.placement.ray_resources import RayResources
from rft_data.placement.ray_role import RayRole, RoleActor, RoleHandle, close_all

PLACES = "RFT_RAY_PLACES"
"""Environment variable of an actor: its placement group, and the first of the places beside its own."""
_CONNECT_S = 5.0
"""Longest try to connect to a cluster."""
_CALLS_AT_ONCE = 1000
"""Calls of one actor at a time: its coroutines run concurrently."""
_OBJECT_STORE_BYTES = 256 << 20
"""Size for a cluster started here: it holds calls and answers, and no rows."""


class RayPlacement:
    """Starts each role as a named actor, in placement groups of this run."""

    overlaps = True

    def __init__(
        self,
        namespace: str,
        hub: HubAccess | None = None,
        environment: Mapping[str, str] | None = None,
        patience: Patience | None = None,
        address: str | None = None,
    ) -> None:
        """Prepare; Ray is started or joined when the first role needs it.

        Args:
            namespace: Ray namespace of the actors: the run's id.
            hub: the hub, with its secret, whose client every role is given; None: they get no buffer.
            environment: variables for the actors; a variable that an actor's process has keeps its value.
            address: a running cluster's, or `auto`; None: RAY_ADDRESS, or a cluster of this machine's own.
        """
        self._namespace = namespace
        self._hub = hub
        self._environment = dict(environment or {})
        self._patience = patience or Patience()
        self._address = address
        self._background = Background("ray-placement")
        self._resources = RayResources(namespace, self._patience)
        self._roles: list[RayRole] = []
        self._started_ray = False

    def preflight(self, specs: Sequence[RoleSpec]) -> list[str]:
        """Reserve the resources of these roles; warns where calls between nodes are in clear.

        Raises: as `RayResources.reserve`.
        """
        self._started_ray = connect(self._address) or self._started_ray
        self._resources.reserve(specs)
        return _in_clear(sum(node["Alive"] for node in _ray().nodes()))

    def reserve(self, spec: RoleSpec) -> bool:
        """Whether the cluster has reserved what this role needs; it may add a node for it."""
        return self._resources.has(spec)

    def release(self, name: str) -> None:
        """Free what was reserved for one role by `reserve`; idempotent."""
        self._resources.free(name)
        self._roles = [role for role in self._roles if role.name != name]

    def place_beside(self, name: str, count: int) -> None:
        """Let this process, which is the role `name`, start roles in the places that were kept for it.

        They are called `cluster.beside(name, 1)`, `cluster.beside(name, 2)`, ...
        """
        self._resources.take(name, count, os.environ[PLACES])

    def drained(self) -> Container[str]:
        """Names of the roles on nodes that Ray was told to drain."""
        return self._resources.drained()

    def start(self, spec: RoleSpec) -> RayRole:
        """Start an actor; reserves its resources if `preflight` has not.

        Raises: as `preflight`, what its factory raises, RoleDiedError, StalledError, and BusyError if the
            namespace has an actor of this name.
        """
        setup = RoleSetup.of(spec, self._hub).encode()
        if spec.name not in self._resources:
            self.preflight([spec])
        role = RayRole(spec.name, lambda: self._make(spec, setup), self._background, self._patience)
        self._roles.append(role)
        return role

    def close(self, *, now: bool = False) -> None:
        """End all actors started here, at the same time, and free their resources; idempotent.

        Args: now: end them without asking the roles to close first.
        """
        roles, self._roles = self._roles, []
        if roles:
            close_all(roles, 0.0 if now else self._patience.close_s)
        self._resources.close()
        self._background.close()
        if self._started_ray:
            self._started_ray = False
            _ray().shutdown()

    def _make(self, spec: RoleSpec, setup: bytes) -> RoleHandle:
        self._wait_for_name(spec.name)
        options: dict[str, object] = {
            "name": spec.name,
            "namespace": self._namespace,
            "num_cpus": spec.cpus,
            "num_gpus": spec.gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": _CALLS_AT_ONCE,
        }
        if (strategy := self._resources.strategy(spec.name)) is not None:
            options["scheduling_strategy"] = strategy
        threads = max(1, int(spec.cpus))
        environment = dict(self._environment)
        if spec.beside:
            environment[PLACES] = self._resources.beside(spec.name)
        made = _ray().remote(RoleActor).options(**options)
        actor: RoleHandle = made.remote(setup, environment, threads)
        return actor

    def _wait_for_name(self, name: str) -> None:
        """Wait until Ray has removed the name of an actor that was killed just before.

        Raises: BusyError if the name is still there after `Patience.close_s`.
        """
        end = time.monotonic() + self._patience.close_s
        while {"name": name, "namespace": self._namespace} in _ray().util.list_named_actors(
            all_namespaces=True
        ):
            if time.monotonic() >= end:
                raise BusyError(
                    f"namespace '{self._namespace}' of this Ray cluster has an actor '{name}' already; "
                    "another process works on this run; end that process first."
                )
            time.sleep(0.05)


def connect(address: str | None = None) -> bool:
    """Join or start a Ray cluster; False if this process is in one already.

    `address`: a running cluster's, or `auto`; None: RAY_ADDRESS, or a cluster of this machine's own.
    Raises: RftError if no cluster answers there.
    """
    ray = _ray()
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _check_answers(address)
    options: dict[str, object] = {"address": address, "logging_level": "warning"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as err:
        raise RftError(
            f"no Ray cluster answers at '{address}': {err}; start one (`ray start --head`), or leave "
            "RAY_ADDRESS unset for one on this machine."
        ) from err
    return True


def _check_answers(address: str) -> None:
    """See that something listens: Ray asks for minutes without a word. Raises: RftError."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        check_listens(host.strip("[]"), int(port), _CONNECT_S)
    except (OSError, OverflowError) as err:
        raise RftError(
            f"no Ray cluster answers at '{address}': {err}; start one there (`ray start --head`), or mend "
            "the address: 'placement.address', or else RAY_ADDRESS. Without both, a cluster is started on "
            "this machine."
        ) from err


def _in_clear(nodes: int) -> list[str]:
    if nodes < 2 or ray_is_encrypted():
        return []
    return [
        f"Ray sends what it carries between its {nodes} nodes in clear, with the tokens of this run's roles; "
        "in a network that others use set RAY_USE_TLS (docs/placement.md)."
    ]


def _ray() -> ModuleType:
    return ray_module("a placement on Ray")
