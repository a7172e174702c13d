"""Resources of a run's roles in a Ray cluster: reserved there, and waited for.

A reservation that does not fit yet is what makes a cluster that autoscales add nodes.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from rft_data.core.errors import RecipeError, StalledError
from rft_data.core.lookup import need
from rft_data.core.roles import RoleSpec
from rft_data.placement.calls import Patience
from rft_data.placement.cluster import beside, lacking, never_fits, role_places, role_resources
from rft_data.placement.ray_handles import PlacementGroup, ray_module

log = logging.getLogger(__name__)

_LOOK_S = 5.0
"""Between two looks at a cluster that is waited for."""


class RayResources:
    """The placement groups of one run."""

    def __init__(self, namespace: str, patience: Patience) -> None:
        """`namespace`: the run's, with which the names of its groups begin."""
        self._namespace = namespace
        self._patience = patience
        self._groups: list[PlacementGroup] = []
        self._places: dict[str, tuple[PlacementGroup, int]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether there is a place for the role of this name."""
        return name in self._places

    def strategy(self, name: str) -> object | None:
        """How Ray schedules the actor of a role; None for a role that needs no resources."""
        if name not in self._places:
            return None
        group, index = self._places[name]
        module = need("ray.util.scheduling_strategies", "ray", "a placement on Ray")
        made: object = module.PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=index
        )
        return made

    def reserve(self, specs: Sequence[RoleSpec]) -> None:
        """Reserve what these roles need, all together; wait for it.

        Raises: RecipeError, at once, if the cluster is too small for them and is not waited for; StalledError
            if it is still too small after `Patience.nodes_s`, or others hold its resources for
            `Patience.place_s`.
        """
        specs = [place for spec in specs for place in role_places(spec)]
        reason = never_fits(specs, _nodes())
        if reason and not self._patience.nodes_s:
            raise RecipeError(reason)
        placed = [spec for spec in specs if role_resources(spec)]
        if placed:
            group = self._asked(placed)
            self._wait(group, placed)
            self._keep(group, placed)

    def has(self, spec: RoleSpec) -> bool:
        """Whether there is a place for this role, in a group of its own; asks for one if it has none."""
        if not role_resources(spec):
            return True
        if spec.name not in self._places:
            self._keep(self._asked([spec]), [spec])
        return str(self._table(spec.name)["state"]) == "CREATED"

    def beside(self, name: str) -> str:
        """The places beside a role's own, as JSON for `take` in its process: their group, the first one."""
        return json.dumps([self._table(name)["name"], self._places[name][1] + 1])

    def take(self, name: str, count: int, places: str) -> None:
        """Use places that another process has reserved; `places`: what `beside` returned there."""
        group, first = json.loads(places)
        held = _group_module().get_placement_group(group)
        self._places |= {beside(name, n): (held, first + n - 1) for n in range(1, count + 1)}

    def free(self, name: str) -> None:
        """Free the place of a role that has a group of its own; idempotent."""
        if name in self._places:
            group, _ = self._places.pop(name)
            self._groups.remove(group)
            _group_module().remove_placement_group(group)

    def drained(self) -> set[str]:
        """Roles whose node is to be taken away.

        Ray 2.60 has no public call for this; its own Train and Data ask the same private one.
        """
        going = _ray()._private.state.state.get_draining_nodes()
        if not going:
            return set()
        nodes = {name: self._table(name)["bundles_to_node_id"][n] for name, (_, n) in self._places.items()}
        return {name for name, node in nodes.items() if node in going}

    def _table(self, name: str) -> Mapping[str, Any]:
        """State, in Ray, of the group in which a role has its place."""
        found: Mapping[str, Any] = _ray().util.placement_group_table(self._places[name][0])
        return found

    def close(self) -> None:
        """Free everything; idempotent."""
        groups, self._groups = self._groups, []
        self._places = {}
        for group in groups:
            _group_module().remove_placement_group(group)

    def _asked(self, specs: Sequence[RoleSpec]) -> PlacementGroup:
        """A new placement group, which the cluster may not have room for yet."""
        # names are unique in the cluster, and a killed run leaves its groups there
        name = f"{self._namespace}/{secrets.token_hex(4)}"
        needed = [role_resources(spec) for spec in specs]
        group: PlacementGroup = _group_module().placement_group(needed, strategy="PACK", name=name)
        return group

    def _keep(self, group: PlacementGroup, specs: Sequence[RoleSpec]) -> None:
        self._groups.append(group)
        self._places |= {spec.name: (group, n) for n, spec in enumerate(specs)}

    def _wait(self, group: PlacementGroup, specs: Sequence[RoleSpec]) -> None:
        began, told = time.monotonic(), ""
        while not group.wait(timeout_seconds=min(_LOOK_S, self._patience.place_s)):
            nodes, waited = _nodes(), time.monotonic() - began
            too_small = never_fits(specs, nodes) is not None
            if waited >= (self._patience.nodes_s if too_small else self._patience.place_s):
                _group_module().remove_placement_group(group)
                raise StalledError(self._refusal(specs, nodes, too_small=too_small))
            if too_small and told != (told := lacking(specs, nodes)):
                log.warning("waiting for nodes of the Ray cluster (%.0f s so far):\n%s", waited, told)

    def _refusal(
        self, specs: Sequence[RoleSpec], nodes: Sequence[Mapping[str, float]], *, too_small: bool
    ) -> str:
        if too_small:
            return (
                f"the run waited {self._patience.nodes_s:g} s for nodes that the Ray cluster does not have:\n"
                f"{lacking(specs, nodes)}\nadd nodes (see `ray status` for what its autoscaler does), raise "
                "'placement.wait_s', or ask for less in 'placement'."
            )
        return (
            f"the run waited {self._patience.place_s:g} s for the Ray cluster to reserve "
            f"what its roles need ({[role_resources(spec) for spec in specs]}); it is large enough, but "
            f"other runs hold its resources: {_held()}. Wait for them to end, or ask for less in 'placement'."
        )


def give_back_places(namespace: str) -> None:
    """Remove the placement groups that a killed conductor of this run has left in the cluster."""
    module = _group_module()
    for group in _ray().util.placement_group_table().values():
        if group["state"] != "REMOVED" and group["name"].startswith(f"{namespace}/"):
            module.remove_placement_group(module.get_placement_group(group["name"]))


def _nodes() -> list[Mapping[str, float]]:
    return [node["Resources"] for node in _ray().nodes() if node["Alive"]]


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
        for group in ray.util.placement_group_table().values()
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
