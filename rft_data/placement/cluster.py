"""Compares the resources that roles need with those that a cluster has, before anything is reserved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rft_data.core.roles import RoleSpec
from rft_data.placement.devices import gpu_share

Resources = Mapping[str, float]
"""Amounts by name, `CPU` and `GPU` among them, as Ray has them."""


def role_resources(spec: RoleSpec) -> dict[str, float]:
    """The resources that one role needs on one node, without those it needs none of.

    Raises: RecipeError if its `gpus` is neither a whole number nor a part of one.
    """
    gpu_share(spec.name, spec.gpus)
    return {name: amount for name, amount in (("CPU", spec.cpus), ("GPU", spec.gpus)) if amount > 0}


def role_places(spec: RoleSpec) -> list[RoleSpec]:
    """The role, and one like it for each place beside it."""
    others = [replace(spec, name=beside(spec.name, n), beside=0) for n in range(1, spec.beside + 1)]
    return [spec, *others]


def beside(name: str, number: int) -> str:
    """The name of what a role called `name` runs in its place number 1, 2, ... beside its own."""
    return f"{name}-{number}"


def never_fits(specs: Sequence[RoleSpec], nodes: Sequence[Resources]) -> str | None:
    """Reason why the roles can never run together on these nodes, with a table; None if they can."""
    available = {kind: sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU")}
    needed = {"CPU": sum(spec.cpus for spec in specs), "GPU": sum(spec.gpus for spec in specs)}
    too_large = [spec for spec in specs if not any(_fits(role_resources(spec), node) for node in nodes)]
    lacking = [kind for kind in available if needed[kind] > available[kind]]
    if not too_large and not lacking:
        return None
    rows = [("", "CPUs", "GPUs"), *((spec.name, f"{spec.cpus:g}", f"{spec.gpus:g}") for spec in specs)]
    rows.append(("needed together", f"{needed['CPU']:g}", f"{needed['GPU']:g}"))
    rows.append((f"available on {len(nodes)} nodes", f"{available['CPU']:g}", f"{available['GPU']:g}"))
    rows += [(f"  node {n}", f"{r.get('CPU', 0):g}", f"{r.get('GPU', 0):g}") for n, r in enumerate(nodes)]
    width = max(len(row[0]) for row in rows)
    table = "\n".join(f"  {name:<{width}}  {cpus:>6}  {gpus:>6}" for name, cpus, gpus in rows)
    why = [f"too few {kind}s" for kind in lacking]
    why += [f"no node is large enough for '{spec.name}'" for spec in too_large]
    return (
        f"the roles can never start on this cluster ({'; '.join(why)}):\n{table}\n"
        "ask for less in 'placement' (cpus, gpus, count; parts of a CPU are allowed), or add nodes."
    )


def lacking(specs: Sequence[RoleSpec], nodes: Sequence[Resources]) -> str:
    """A table: what each role asks for, what the largest node has, what is missing; and all together."""
    kinds = [kind for kind in ("CPU", "GPU") if any(kind in role_resources(spec) for spec in specs)]
    most = {kind: max((node.get(kind, 0.0) for node in nodes), default=0.0) for kind in kinds}
    total = {kind: sum(node.get(kind, 0.0) for node in nodes) for kind in kinds}
    together: dict[str, float] = {}
    for spec in specs:
        for kind, amount in role_resources(spec).items():
            together[kind] = together.get(kind, 0.0) + amount
    asked = [(spec.name, role_resources(spec), most) for spec in specs]
    asked.append((f"together, on {len(nodes)} nodes", together, total))
    width = max(len(name) for name, _, _ in asked)
    heads = "".join(f"  {f'{kind}s asked':>10}  {'have':>6}  {'missing':>7}" for kind in kinds)
    lines = [f"  {'':<{width}}{heads}"]
    for name, needed, has in asked:
        cells = [(needed.get(kind, 0.0), has[kind]) for kind in kinds]
        row = "".join(f"  {want:>10g}  {have:>6g}  {max(0.0, want - have):>7g}" for want, have in cells)
        lines.append(f"  {name:<{width}}{row}")
    return "\n".join(lines)


def _fits(needed: Resources, node: Resources) -> bool:
    return all(node.get(kind, 0.0) >= amount for kind, amount in needed.items())
