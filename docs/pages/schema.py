"""The page about stored data, from the schema itself: `python -m docs.pages.schema > docs/schema.md`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from rft_data.core.schema import SCHEMA_VERSION, TABLES, is_json

_ABOUT = {
    "runs": ("one row for each start of a run", "run"),
    "tasks": ("prompts with what is needed to score them; the key is (taskset, task_id)", "task source"),
    "task_state": ("the selector's state at each checkpoint; newest wins", "loop"),
    "experiences": ("one row for each trainable step of a rollout; never changed", "explorer"),
    "preferences": ("pairs of answers, one preferred", "importer, operator or person"),
    "groups": ("the outcome of each ticket: the rollouts of one task sampled together", "loop"),
    "annotations": ("what one operator pipeline decided about one experience; newest wins", "operators"),
    "leases": ("the log of leases: which consumer got which groups for which step", "ledger"),
    "consumed": ("which leases are part of a checkpoint", "ledger"),
    "trained_tokens": (
        "what the trainer found for each token of a few rows of every step; newest wins",
        "trainer and loop",
    ),
    "stage_rows": ("what each offline stage was trained on; newest wins", "run"),
    "feedback": (
        "what people and programs say about an experience later: delayed rewards, scores, edits",
        "person or program",
    ),
    "versions": ("policy versions and their weight directories", "version registry"),
    "metrics": ("numbers of a run", "loop"),
    "payloads": ("images, audio and other large values, stored once", "importer or workflow"),
    "tags": ("named views: a frontier and a filter over rows that never change", "person"),
    "quarantine": ("rows that were refused or set aside, and why", "validation, operators, repair"),
}


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([*_head(), *(line for name in TABLES for line in _table(name))]) + "\n"


def _head() -> list[str]:
    return [
        "# What is stored",
        "",
        "```console",
        "rft buffer head BUFFER --table annotations -n 8",
        'rft buffer query BUFFER "select taskset, avg(reward) from experiences group by 1"',
        "```",
        "",
        "| table | |",
        "|---|---|",
        *(f"| [`{name}`](#{name}) | {_ABOUT[name][0]} |" for name in TABLES),
        "",
        "Written by `python -m docs.pages.schema` from `rft_data/core/schema.py`; a test compares them.",
        "",
        f"Schema version {SCHEMA_VERSION}. A package of another version refuses the buffer and says so; a",
        "buffer of version 2 is copied into the present form with `rft buffer upgrade OLD NEW`. Rows are",
        "never updated: what changes is appended, and the newest row counts. Lists marked T have one value",
        "for each token.",
        "",
        "**The effective reward** of a row is `shaped_reward` of its newest annotation where that is set,",
        "else the `reward` it was stored with (`rft_data/core/effective_reward.py`). Whatever decides by a",
        "reward reads it: operators (as it stands at their place in the list), selectors, replay,",
        "`groups.rewards`, pairs and rows of offline stages, losses, evaluation and the metric `reward`. A",
        "training run reads the annotation of its own operators. Filters and SQL over `experiences` see the",
        "stored column.",
    ]


def _table(name: str) -> Iterator[str]:
    schema, key = TABLES[name]
    about, filler = _ABOUT[name]
    yield from (
        "",
        f"## {name}",
        "",
        f"{about[0].upper()}{about[1:]}." + (f" Key: `{key}`." if key else ""),
        "",
    )
    yield "| column | type | meaning | filled by |"
    yield "|---|---|---|---|"
    for field in schema:
        meta = field.metadata or {}
        by = meta.get(b"by", filler.encode()).decode()
        doc = meta[b"doc"].decode().replace("|", "\\|")
        yield f"| `{field.name}` | {_kind(field)} | {doc} | {by} |"


def _kind(field: pa.Field) -> str:
    kind = "JSON" if is_json(field) else _type(field.type)
    return f"{kind}, or null" if field.nullable else kind


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_type(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "(" + ", ".join(f"{f.name} {_type(f.type)}" for f in kind) + ")"
    return "time, UTC" if pa.types.is_timestamp(kind) else str(kind)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is the output
