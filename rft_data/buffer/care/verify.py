"""Checks a buffer's folder. Never writes, needs no lock, and works where LanceDB cannot open a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rft_data.buffer.care.damage import Finding, Report
from rft_data.buffer.care.disagreements import number_findings, reference_findings, weight_findings
from rft_data.buffer.care.examine import REPAIR, Examined, examine_each, findings
from rft_data.buffer.care.folder import TableFolder
from rft_data.buffer.care.lost_rows import Lost, read_lost
from rft_data.buffer.care.references import References, read_references
from rft_data.buffer.location import owner_pid
from rft_data.buffer.unfinished import MARK, unfinished
from rft_data.core.errors import MissingFileError
from rft_data.core.schema import SCHEMA_VERSION

_ORDER = (
    "consumed",
    "leases",
    "groups",
    "annotations",
    "feedback",
    "versions",
    "metrics",
    "task_state",
    "experiences",
)
"""Tables that refer to rows come first. A running owner writes in the opposite order, so a row that is named
in a table read earlier is found in a table read later."""


def verify(root: Path, *, deep: bool = True) -> Report:
    """The damage of the buffer at `root`.

    `deep` reads every row and checks its digest; otherwise only files, row numbers and ids are checked.
    Raises: MissingFileError if there is no buffer.
    """
    return report_on(root.resolve(), deep=deep)


def report_on(root: Path, *, deep: bool, tried: bool = False) -> Report:
    """Like `verify`; `tried`: the files are known to decode without killing the process."""
    tables = examine_all(root, deep=deep, tried=tried)
    lost = read_lost(root)
    found = [*_marker_and_owner(root)]
    for table in tables.values():
        found += findings(table)
    readable = {name: table for name, table in tables.items() if table.folder.head is not None}
    references = read_references(readable, lost)
    if not judged(readable):
        references.unjudged = {}
    found += _between(root, readable, references, lost)
    rows = {name: len(table.contents.row_ids) for name, table in sorted(readable.items())}
    return Report(root, deep, rows, tuple(found))


def examine_all(root: Path, *, deep: bool, tried: bool = False) -> dict[str, Examined]:
    """The examination of every table of a buffer.

    Raises: MissingFileError if there is no buffer.
    """
    stored = sorted(path.stem for path in root.glob("*.lance") if path.is_dir())
    if not stored and not (root / "schema_version").is_file():
        raise MissingFileError(
            f"there is no buffer at {root}; name the folder of a run's buffer, "
            "for example runs/quickstart/buffer."
        )
    first = [name for name in _ORDER if name in stored]
    names = first + [name for name in stored if name not in first]
    looked = examine_each([TableFolder(root, name) for name in names], deep=deep, tried=tried)
    return dict(zip(names, looked, strict=True))


def judged(tables: Mapping[str, Examined]) -> bool:
    """Whether the buffer has annotations; if not, groups need no verdicts."""
    return "annotations" in tables and len(tables["annotations"].contents.row_ids) > 0


def _between(
    root: Path, tables: Mapping[str, Examined], references: References, lost: Lost
) -> Iterator[Finding]:
    yield from reference_findings(references)
    if "experiences" in tables:
        yield from number_findings(tables["experiences"], lost, references.named)
    if "versions" in tables:
        yield from weight_findings(root, tables["versions"])


def _marker_and_owner(root: Path) -> Iterator[Finding]:
    """Findings about the schema version and the owner."""
    marker = root / "schema_version"
    version = marker.read_text(errors="replace").strip() if marker.is_file() else ""
    if version != str(SCHEMA_VERSION):
        blank = not version
        remedy = (
            f"{REPAIR} writes it again, if the tables fit"
            if blank
            else "open it with the version that wrote it"
        )
        yield Finding(
            "schema_version",
            "damage" if blank else "fatal",
            "",
            "schema_version",
            f"which version the tables have ('{version}', this package writes {SCHEMA_VERSION})",
            remedy,
        )
    if unfinished(root):
        what = "rows that it was about to put back may be missing; the buffer does not open for writing"
        yield Finding("repair", "damage", "", MARK, what, f"{REPAIR} finishes it")
    owner = owner_pid(root)
    if owner:
        remedy = (
            "nothing; files of a write on its way may show as orphans. Repair needs the process to end first"
        )
        yield Finding("owner", "note", "", f"process {owner}", "", remedy)
