"""Roles as Ray actors, on one machine or many. Only actors that were started here are ended here.

The caller decides whether a role that has died is started again, so Ray itself restarts none.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from types import ModuleType

from rft_data.core.errors import BusyError, RecipeError, RftError, StalledError
from rft_data.core.lookup import need
from rft_data.core.protocols import RoleSpec
from rft_data.placement.background import Background
from rft_data.placement.calls import Patience, RoleSetup
from rft_data.placement.cluster import never_fits, role_resources
from rft_data.placement.ray_handles import PlacementGroup, ray_module
from rft_data.placement.ray_role import RayRole, RoleActor, RoleHandle, close_all

_CALLS_AT_ONCE = 1000
"""Of one actor: its coroutines run concurrently."""
_OBJECT_STORE_BYTES = 256 << 20
"""Size for a cluster started here: it holds calls and answers, and no rows."""


class RayPlacement:
    """Starts each role as a named actor, in placement groups of this run."""

    overlaps = True

    def __init__(
        self,
        namespace: str,
        hub: tuple[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        patience: Patience | None = None,
        address: str | None = None,
    ) -> None:
        """Prepare; Ray is started or joined when the first role needs it.

        Args:
            namespace: Ray namespace of the actors: the run's id.
            hub: address and secret of the hub whose client every role is given; None: they get no buffer.
            environment: variables for the actors; a variable that an actor's process has keeps its value.
            address: a running cluster's, or `auto`; None: RAY_ADDRESS, or a cluster of this machine's own.
        """
        self._namespace = namespace
        self._hub = hub
        self._environment = dict(environment or {})
        self._patience = patience or Patience()
        self._address = address
        self._background = Background("ray-placement")
        self._groups: list[PlacementGroup] = []
        self._places: dict[str, tuple[PlacementGroup, int]] = {}
        self._roles: list[RayRole] = []
        self._started_ray = False

    def preflight(self, specs: Sequence[RoleSpec]) -> list[str]:
        """Reserve the resources of these roles; no warnings.

        Raises: RecipeError, at once, if the cluster is too small for them; StalledError if other runs hold
            its resources for `Patience.place_s`.
        """
        self._started_ray = connect(self._address) or self._started_ray
        ray = _ray()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if reason := never_fits(specs, nodes):
            raise RecipeError(reason)
        placed = [spec for spec in specs if role_resources(spec)]
        if placed:
            group = self._reserved(placed)
            self._places |= {spec.name: (group, n) for n, spec in enumerate(placed)}
        return []

    def start(self, spec: RoleSpec) -> RayRole:
        """Start an actor; reserves its resources if `preflight` has not.

        Raises: as `preflight`, what its factory raises, RoleDiedError, StalledError, and BusyError if the
            namespace has an actor of this name.
        """
        setup = RoleSetup.of(spec, self._hub).encode()
        if spec.name not in self._places:
            self.preflight([spec])
        role = RayRole(spec.name, lambda: self._make(spec, setup), self._background, self._patience)
        self._roles.append(role)
        return role

    def close(self, *, now: bool = False) -> None:
        """End all actors started here, at the same time, and free their resources; idempotent.

        Args: now: end them without asking the roles to close first.
        """
        roles, self._roles = self._roles, []
        groups, self._groups = self._groups, []
        self._places = {}
        if roles or groups:
            close_all(roles, 0.0 if now else self._patience.close_s)
            for group in groups:
                _group_module().remove_placement_group(group)
        self._background.close()
        if self._started_ray:
            self._started_ray = False
            _ray().shutdown()

    def _reserved(self, specs: Sequence[RoleSpec]) -> PlacementGroup:
        module = _group_module()
        # names are unique in the cluster, and a killed run leaves its groups there
        name = f"{self._namespace}/{secrets.token_hex(4)}"
        needed = [role_resources(spec) for spec in specs]
        group: PlacementGroup = module.placement_group(needed, strategy="PACK", name=name)
        if not group.wait(timeout_seconds=self._patience.place_s):
            module.remove_placement_group(group)
            raise StalledError(
                f"the run waited {self._patience.place_s:g} s for the Ray cluster to reserve "
                f"what its roles need ({needed}); it is large enough, but other runs hold its resources: "
                f"{_held()}. Wait for them to end, or ask for less in 'placement'."
            )
        self._groups.append(group)
        return group

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
        if spec.name in self._places:
            group, index = self._places[spec.name]
            strategies = need("ray.util.scheduling_strategies", "ray", "a placement on Ray")
            options["scheduling_strategy"] = strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            )
        threads = max(1, int(spec.cpus))
        made = _ray().remote(RoleActor).options(**options)
        actor: RoleHandle = made.remote(setup, self._environment, threads)
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


def give_back_places(namespace: str) -> None:
    """Remove the placement groups that a killed conductor of this run has left in the cluster."""
    module = _group_module()
    for group in _ray().util.placement_group_table().values():
        if group["state"] != "REMOVED" and group["name"].startswith(f"{namespace}/"):
            module.remove_placement_group(module.get_placement_group(group["name"]))


def _held() -> str:
    """One line with the free resources of the cluster, its placement groups and its named actors."""
    ray = _ray()
    kinds = ("CPU", "GPU")
    free, total = ray.available_resources(), ray.cluster_resources()
    amounts = [
        f"{free.get(kind, 0):g} of {total[kind]:g} {kind}s are free" for kind in kinds if kind in total
    ]
    groups = [
        f"placement group '{group['name']}' has {list(group['bundles'].values())}"
        for group in _ray().util.placement_group_table().values()
        if group["state"] == "CREATED"
    ]
    actors = [f"'{a['name']}' of '{a['namespace']}'" for a in ray.util.list_named_actors(all_namespaces=True)]
    named = [f"named actors: {', '.join(actors)}"] if actors else []
    return "; ".join([*amounts, *groups, *named])


def _ray() -> ModuleType:
    return ray_module("a placement on Ray")


def _group_module() -> ModuleType:
    module: ModuleType = need("ray.util.placement_group", "ray", "a placement on Ray")
    return module
