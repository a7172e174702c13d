"""The dataset card of an export: its rows, what was left out and why, its origin, and how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rft_data.buffer import Buffer
from rft_data.core.filters import Filter, to_json
from rft_data.core.schema import SCHEMA_VERSION
from rft_data.core.version import __version__
from rft_data.exchange.formats.records import Format
from rft_data.exchange.formats.targets import CARD_MARK, target_kind

_LISTED = 50


@dataclass(slots=True)
class ExportReport:
    """Counts of an export: selected = written + the sum of skipped."""

    target: str
    format: str
    tables: tuple[str, ...]
    selected: int = 0
    """Rows that pass the filter (for mined pairs: groups)."""
    written: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Rows left out, by reason."""
    card: str = ""
    """Path of the dataset card."""


@dataclass(slots=True)
class Provenance:
    """The origin of the rows written."""

    tasksets: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    sources: set[str] = field(default_factory=set)
    version_min: int | None = None
    version_max: int | None = None

    def add(self, record: object) -> None:
        """Take in a row that was written."""
        for names, column in ((self.tasksets, "taskset"), (self.runs, "run_id"), (self.sources, "source")):
            value = _column(record, column)
            if isinstance(value, str):
                names.add(value)
        low, high = _column(record, "version_min"), _column(record, "version_max")
        if isinstance(low, int) and isinstance(high, int):
            self.version_min = low if self.version_min is None else min(low, self.version_min)
            self.version_max = high if self.version_max is None else max(high, self.version_max)


def _column(record: object, column: str) -> object:
    return record.get(column) if isinstance(record, Mapping) else getattr(record, column, None)


def card(buffer: Buffer, report: ExportReport, chosen: Format, seen: Provenance, where: Filter | None) -> str:
    """The card as Markdown, with the front matter that the Hugging Face hub reads."""
    target = Path(report.target)
    versions = "none" if seen.version_min is None else f"{seen.version_min} to {seen.version_max}"
    pipelines = sorted(set(buffer.read("annotations", ["pipeline_hash"]).column(0).to_pylist()))
    facts = {
        "buffer": f"`{buffer.root.name}`, {len(buffer)} experiences when written",
        "tables": ", ".join(report.tables),
        "format": f"`{chosen.name}`: {' | '.join(chosen.shapes)}",
        "filter": "none" if where is None else f"`{json.dumps(to_json(where))}`",
        "rows": f"{report.written} of {report.selected} selected",
        "tasksets": _listed(seen.tasksets),
        "runs": _listed(seen.runs),
        "sources": _listed(seen.sources),
        "policy versions": versions,
        "operator pipelines in the buffer": _listed(set(pipelines)),
        "schema version": str(SCHEMA_VERSION),
        "written by": f"rft-data {__version__}",
    }
    lines = ["---", *_front_matter(target), "---", CARD_MARK, "", f"# {target.name}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "## Left out", ""]
    lines += [f"- {count}: {reason}" for reason, count in sorted(report.skipped.items())] or ["- nothing"]
    lines += ["", "## Loading", "", "```python", "import datasets", "", _loading(target), "```"]
    if chosen.read is not None:
        lines += ["", f"or into a buffer: `rft buffer import BUFFER {target.name} --format {chosen.name}`"]
    return "\n".join(lines) + "\n"


def _front_matter(target: Path) -> list[str]:
    pattern = "data-*.arrow" if target_kind(target) == "folder" else target.name
    return ["tags: [rft-data]", "configs:", "- config_name: default", f"  data_files: {json.dumps(pattern)}"]


def _loading(target: Path) -> str:
    kind = target_kind(target)
    if kind == "folder":
        return f"rows = datasets.load_from_disk({target.name!r})"
    loader = "json" if kind == "jsonl" else kind
    return f"rows = datasets.load_dataset({loader!r}, data_files={target.name!r}, split='train')"


def _listed(names: set[str]) -> str:
    shown = [f"`{name}`" for name in sorted(names)[:_LISTED]]
    more = [f"and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return ", ".join(shown + more) or "none"
