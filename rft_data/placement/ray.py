"""Roles as Ray actors, on one machine or many; it ends what it started there, and nothing else.

Whether a dead role is started again is its caller's decision, so Ray itself restarts none.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rft_data.core.errors import BusyError, RecipeError, RftError, StalledError
from rft_data.core.lookup import need
from rft_data.core.protocols import RoleSpec
from rft_data.placement.background import Background
from rft_data.placement.calls import Birth, Patience
from rft_data.placement.cluster import bundle_of, never_fits
from rft_data.placement.ray_role import RayRole, RoleActor, close_all

_CALLS_AT_ONCE = 1000
_OBJECT_STORE_BYTES = 256 << 20
"""Of a cluster started here: calls and answers pass through it, rows do not."""


class RayPlacement:
    """Named actors in a placement group of their own."""

    overlaps = True

    def __init__(
        self,
        namespace: str,
        hub: tuple[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        patience: Patience | None = None,
        address: str | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            namespace: of the actors' names: the run's id.
            hub: (address, token) of the hub whose client every role is given; None: they get no buffer.
            environment: variables for the actors; what is set there stays as it is.
            address: a running cluster's, or `auto`; None: RAY_ADDRESS, or a cluster of this machine's own.
        """
        self._namespace = namespace
        self._hub = hub
        self._environment = dict(environment or {})
        self._patience = patience or Patience()
        self._address = address
        self._background = Background("ray-placement")
        self._groups: list[Any] = []
        self._places: dict[str, tuple[Any, int]] = {}
        self._roles: list[RayRole] = []
        self._started_ray = False

    def preflight(self, specs: Sequence[RoleSpec]) -> list[str]:
        """Reserve the places of these roles.

        Raises: RecipeError, at once, if the cluster can never hold them; StalledError if others hold it.
        """
        self._started_ray = connect(self._address) or self._started_ray
        ray = _ray()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if reason := never_fits(specs, nodes):
            raise RecipeError(reason)
        placed = [spec for spec in specs if bundle_of(spec)]
        if placed:
            group = self._reserved(placed)
            self._places |= {spec.name: (group, n) for n, spec in enumerate(placed)}
        return []

    def start(self, spec: RoleSpec) -> RayRole:
        """Start an actor; a role that `preflight` has not seen gets a place of its own.

        Raises: as `preflight`, what its factory raises, RoleDiedError, StalledError, and BusyError if the
            namespace has an actor of this name.
        """
        birth = Birth.of(spec, self._hub).written()
        if spec.name not in self._places:
            self.preflight([spec])
        role = RayRole(spec.name, lambda: self._make(spec, birth), self._background, self._patience)
        self._roles.append(role)
        return role

    def close(self, *, now: bool = False) -> None:
        """End every actor started here, all at the same time, and give their places back; idempotent.

        Args: now: do not ask them to close first.
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

    def _reserved(self, specs: Sequence[RoleSpec]) -> Any:
        module = _group_module()
        name = (
            f"{self._namespace}/{secrets.token_hex(4)}"  # names are the cluster's, and outlive a killed run
        )
        group = module.placement_group([bundle_of(spec) for spec in specs], strategy="PACK", name=name)
        if not group.wait(timeout_seconds=self._patience.place_s):
            module.remove_placement_group(group)
            raise StalledError(
                f"the run waited {self._patience.place_s:g} s for the Ray cluster to give its roles a place "
                f"({[bundle_of(spec) for spec in specs]}); it is large enough, but others hold it: {_held()}."
            )
        self._groups.append(group)
        return group

    def _make(self, spec: RoleSpec, birth: bytes) -> Any:
        self._wait_for_name(spec.name)
        options: dict[str, Any] = {
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
        return _ray().remote(RoleActor).options(**options).remote(birth, self._environment, threads)

    def _wait_for_name(self, name: str) -> None:
        """Wait until Ray has buried an actor that was killed just now."""
        end = time.monotonic() + self._patience.close_s
        while {"name": name, "namespace": self._namespace} in _ray().util.list_named_actors(
            all_namespaces=True
        ):
            if time.monotonic() >= end:
                raise BusyError(
                    f"namespace '{self._namespace}' of this Ray cluster has an actor '{name}' already; "
                    "another process works on this run: end that first."
                )
            time.sleep(0.05)


def connect(address: str | None = None) -> bool:
    """Join a Ray cluster unless this process is in one already; whether one was started or joined just now.

    `address`: a running cluster's, or `auto`; None: RAY_ADDRESS, or a cluster of this machine's own.
    Raises: RftError if there is none.
    """
    ray = _ray()
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"address": address, "logging_level": "warning"}
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
    """Remove the placement groups of a killed conductor of this run: Ray keeps them for its next life."""
    module = _group_module()
    for group in _ray().util.placement_group_table().values():
        if group["state"] != "REMOVED" and group["name"].startswith(f"{namespace}/"):
            module.remove_placement_group(module.get_placement_group(group["name"]))


def _held() -> str:
    """Who holds what of the cluster, in one line."""
    ray = _ray()
    kinds = ("CPU", "GPU")
    free, there = ray.available_resources(), ray.cluster_resources()
    amounts = [
        f"{free.get(kind, 0):g} of {there[kind]:g} {kind}s are free" for kind in kinds if kind in there
    ]
    groups = [
        f"placement group '{group['name']}' has {list(group['bundles'].values())}"
        for group in _ray().util.placement_group_table().values()
        if group["state"] == "CREATED"
    ]
    actors = [f"'{a['name']}' of '{a['namespace']}'" for a in ray.util.list_named_actors(all_namespaces=True)]
    named = [f"named actors: {', '.join(actors)}"] if actors else []
    return "; ".join([*amounts, *groups, *named])


def _ray() -> Any:
    return need("ray", "ray", "a placement on Ray")


def _group_module() -> Any:
    return need("ray.util.placement_group", "ray", "a placement on Ray")
