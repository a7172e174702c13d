"""`rft doctor`: what this machine has and lacks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rft_data.cli.edge import Json, edge, show

_MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


def doctor(
    folder: Annotated[
        Path, typer.Option("--folder", help="A folder on the disk that is to be measured.")
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Check versions, extras, hardware, disk and ports, and say what to do; exit code 3: a run would fail."""
    with edge():
        from rft_data.core.errors import MissingExtraError
        from rft_data.core.words import Health
        from rft_data.run.doctor.disk import disk_finding
        from rft_data.run.doctor.machine import machine_findings
        from rft_data.run.doctor.packages import package_findings

        found = [*package_findings(), *machine_findings(), disk_finding(folder.absolute())]
        width = max(len(one.about) for one in found)
        lines = []
        for one in found:
            lines.append(f"{_MARKS[one.health]}  {one.about:<{width}}  {one.found}")
            lines += [f"{'':<{width + 6}}  -> {one.fix}"] if one.fix else []
        show([asdict(one) for one in found], "\n".join(lines), as_json=as_json)
        if any(one.health is Health.BAD for one in found):
            raise typer.Exit(MissingExtraError.exit_code)
