"""Is a buffer's folder sound? Never writes, needs no lock, works where LanceDB cannot open a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rft_data.buffer.care.damage import Finding, Report
from rft_data.buffer.care.disagreements import book_findings, number_findings, weight_findings
from rft_data.buffer.care.examine import REPAIR, Examined, examine_each, findings
from rft_data.buffer.care.folder import TableFolder
from rft_data.buffer.care.lost_rows import Lost, read_lost
from rft_data.buffer.care.references import Books, read_books
from rft_data.buffer.location import owner_pid
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
"""What refers to rows before the rows themselves: a living owner writes the other way round, so what an
earlier table names is in the later one."""


def verify(root: Path, *, deep: bool = True) -> Report:
    """Everything that is wrong with the buffer at `root`.

    `deep` reads every row and checks its digest; without it only files, row numbers and ids are.
    Raises: MissingFileError if there is no buffer.
    """
    return report_on(root.resolve(), deep=deep)


def report_on(root: Path, *, deep: bool, tried: bool = False) -> Report:
    """The same; `tried`: it is known that the files can be decoded without harm to the process."""
    tables = examine_all(root, deep=deep, tried=tried)
    lost = read_lost(root)
    found = [*_home(root)]
    for table in tables.values():
        found += findings(table)
    readable = {name: table for name, table in tables.items() if table.folder.head is not None}
    books = read_books(readable, lost)
    if not judged(readable):
        books.unjudged = {}
    found += _between(root, readable, books, lost)
    rows = {name: len(table.contents.row_ids) for name, table in sorted(readable.items())}
    return Report(root, deep, rows, tuple(found))


def examine_all(root: Path, *, deep: bool, tried: bool = False) -> dict[str, Examined]:
    """Every table of a buffer, looked at.

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
    """Whether operators judge the rows of this buffer at all; else groups need no verdicts."""
    return "annotations" in tables and len(tables["annotations"].contents.row_ids) > 0


def _between(root: Path, tables: Mapping[str, Examined], books: Books, lost: Lost) -> Iterator[Finding]:
    yield from book_findings(books)
    if "experiences" in tables:
        yield from number_findings(tables["experiences"], lost, books.named)
    if "versions" in tables:
        yield from weight_findings(root, tables["versions"])


def _home(root: Path) -> Iterator[Finding]:
    """The marker and the lock."""
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
    owner = owner_pid(root)
    if owner:
        remedy = (
            "nothing; files of a write on its way may show as orphans. Repair needs the process to end first"
        )
        yield Finding("owner", "note", "", f"process {owner}", "", remedy)
