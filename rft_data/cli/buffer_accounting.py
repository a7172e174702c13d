"""`rft buffer books | upgrade`: the accounting of a run's rollouts, and buffers of older schema versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, cast

import typer

from rft_data.cli.edge import Json, edge, show


def books(
    uri: Annotated[str, typer.Argument(help="The buffer's folder or object-store URL.")],
    run: Annotated[str | None, typer.Option(help="Which run; else every run in the buffer.")] = None,
    as_json: Json = False,
) -> None:
    """Rollouts by state, for each run and consumer; exit code 1 if the states do not add up."""
    with edge():
        from rft_data.buffer import Buffer
        from rft_data.core.errors import UnknownComponentError
        from rft_data.core.lookup import suggest
        from rft_data.sampler.accounts import accounts

        buffer = Buffer(uri, read_only=True)
        runs = sorted(set(buffer.read("groups", ["run_id"]).column("run_id").to_pylist()))
        if run is not None and run not in runs:
            raise UnknownComponentError(
                f"buffer {uri} has no rollouts of run '{run}';{suggest(run, runs)} "
                f"it has those of: {', '.join(runs) or 'none'}."
            )
        found: list[dict[str, object]] = []
        for run_id in runs if run is None else [run]:
            for consumer, counts in accounts(buffer, run_id).items():
                found.append({"run_id": run_id, "consumer": consumer, **counts.as_dict()})
        show(found, "\n\n".join(map(_lines, found)) or "no rollouts", as_json=as_json)
        if any(entry["residual"] or entry["faults"] for entry in found):
            raise typer.Exit(1)


def _lines(entry: Mapping[str, object]) -> str:
    lines = [f"run '{entry['run_id']}', consumer '{entry['consumer']}'"]
    for name, value in entry.items():
        if isinstance(value, dict):
            lines += [f"  {name + ' by ' + operator:<40}{count:>9}" for operator, count in value.items()]
        elif isinstance(value, int):
            lines.append(f"  {name:<40}{value:>9}")
    faults = cast("list[str]", entry["faults"])
    return "\n".join([*lines, *(f"  FAULT: {fault}" for fault in faults)])


def upgrade(
    old: Annotated[Path, typer.Argument(help="A buffer's folder of an older schema version; left as it is.")],
    new: Annotated[Path, typer.Argument(help="The folder to make.")],
    as_json: Json = False,
) -> None:
    """Copy an older buffer into a new folder in the present schema version; every row is checked."""
    with edge():
        from rft_data.buffer.upgrade import upgrade as copy

        rows = copy(old, new)
        show(rows, "\n".join(f"{name:<14}{count:>9}" for name, count in rows.items()), as_json=as_json)
