"""`rft buffer verify | repair | compact | quarantine`: the commands that maintain a buffer's folder."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from rft_data.cli.edge import Json, edge, show

Uri = Annotated[str, typer.Argument(help="The buffer's folder or object-store URL.")]


def verify(
    uri: Uri,
    quick: Annotated[
        bool, typer.Option("--quick", help="Files and row numbers only, not every row.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Look for damage; exit code 1 if there is any. Reads only, also beside a running owner."""
    with edge():
        from rft_data.buffer.care import verify as look
        from rft_data.buffer.care import verify_stored
        from rft_data.core.scratch import on_store

        report = verify_stored(uri, deep=not quick) if on_store(uri) else look(Path(uri), deep=not quick)
        show(report.as_json(), report.text(), as_json=as_json)
        if report.damaged:
            raise typer.Exit(1)


def repair(
    uri: Uri,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, change nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Repair damage: move it aside, put back what can be found, list what is lost. Deletes nothing."""
    with edge():
        from rft_data.buffer.care import repair as mend
        from rft_data.buffer.care import repair_stored
        from rft_data.core.scratch import on_store
        from rft_data.run.occupied import check_repairable

        if not on_store(uri):
            done = mend(Path(uri), dry_run=dry_run)
        else:
            if not dry_run:
                check_repairable(uri)
            done = repair_stored(uri, dry_run=dry_run)
        show(done.as_json(), done.text(), as_json=as_json)


def compact(uri: Uri, as_json: Json = False) -> None:
    """Merge the small files of every table and drop old versions."""
    with edge():
        from rft_data.buffer import Buffer
        from rft_data.run.occupied import check_free

        _must_exist(uri)
        check_free(uri)
        with Buffer(uri) as buffer:
            tables = buffer.compact()
        lines = [
            f"{name:<14}{facts['fragments_before']:>7} -> {facts['fragments_after']} fragments"
            for name, facts in sorted(tables.items())
        ]
        show(tables, "\n".join(lines) or "nothing to compact", as_json=as_json)


def quarantine(
    uri: Uri,
    export: Annotated[Path | None, typer.Option(help="Write the rows to this JSONL file.")] = None,
    as_json: Json = False,
) -> None:
    """Rows that validation refused or a repair took out, by reason."""
    with edge():
        from rft_data.buffer import Buffer
        from rft_data.core.codec import from_table
        from rft_data.core.schema import QUARANTINE

        with Buffer(uri, read_only=True) as buffer:
            reasons = Counter(
                str(text) for text in buffer.read("quarantine", ["reason"]).column(0).to_pylist()
            )
            if export is not None:
                with export.open("w", encoding="utf-8") as file:
                    for batch in buffer.batches("quarantine"):
                        for row in from_table(batch, QUARANTINE):
                            file.write(json.dumps(row, default=str) + "\n")
        value: dict[str, object] = {"rows": reasons.total(), "reasons": dict(reasons.most_common())}
        if export is not None:
            value["exported_to"] = str(export)
        lines = [f"{count:>7}  {reason}" for reason, count in reasons.most_common()]
        lines += [f"written to {export}"] if export is not None else []
        show(value, "\n".join(lines) or "nothing is in quarantine", as_json=as_json)


def _must_exist(uri: str) -> None:
    """Opening a buffer for writing would create it."""
    from rft_data.buffer import Buffer

    Buffer(uri, read_only=True).close()
