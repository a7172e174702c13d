"""Files to import, and what a buffer holds in a form that two buffers can be compared by."""

import json
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.exchange.formats.payloads import store_payloads
from rft_data.exchange.formats.records import Choices, Format, Origin


@pytest.fixture
def buffer(tmp_path: Path):
    with Buffer(tmp_path / "buffer") as opened:
        yield opened


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def contents(buffer: Buffer) -> dict[str, list[dict[str, Any]]]:
    """What was imported, without row numbers and times."""
    left_out = {"experiences": ["seq", "created_at"], "tasks": ["created_at"], "preferences": ["created_at"]}
    return {name: buffer.read(name).drop_columns(columns).to_pylist() for name, columns in left_out.items()}


def quarantined(buffer: Buffer) -> list[str]:
    return buffer.read("quarantine", ["reason"]).column(0).to_pylist()


def read(chosen: Format, row: dict[str, Any]) -> list[Any]:
    """The canonical rows of one row, times set equal."""
    assert chosen.read is not None
    plain, _ = store_payloads(row, lambda data, kind: "0" * 32)
    return [same_time(record) for record in chosen.read(plain, Origin("set"))]


def same_time(record: Any) -> Any:
    return record if not hasattr(record, "created_at") else _replaced(record)


def _replaced(record: Any) -> Any:
    from dataclasses import replace
    from datetime import UTC, datetime

    return replace(record, created_at=datetime(2026, 1, 1, tzinfo=UTC))


def again(chosen: Format, record: Any) -> list[Any]:
    """The record written, sent through JSON, and read again."""
    assert chosen.write is not None
    return read(chosen, json.loads(json.dumps(chosen.write(record, Choices()))))
