"""A row as a function of its recipe shows it: `explorer.render`, run in a process of its own.

The function gets the row as plain values (JSON columns read) and returns a text, a mapping, or a list of rows
(mappings or lists). It cannot act on the page: its answer is shown as text, and so is an error that it
raises.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft_data.core.children import Child, how_it_ended
from rft_data.core.schema import EXPERIENCES, is_json
from rft_data.recipe.load import OWN_CODE_FILE
from rft_data.run.record import RECIPE_FILE

DEADLINE_S = 10.0
"""Seconds for importing and calling it, and for its end where it gives no answer."""
MOST_ROWS, MOST_COLUMNS = 200, 20
_LAST_LINES = 3
"""Lines of what it printed that a message shows; it may print without end."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Result of a renderer for a row; one of its parts is filled."""

    name: str
    """Its import path."""
    text: str = ""
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    wrong: str = ""
    """Reason why there is nothing to show."""


def run_renderer(run_dir: Path | None) -> str:
    """The import path of the renderer that a run's recipe names; empty without one."""
    if run_dir is None:
        return ""
    try:
        recipe = json.loads((run_dir / RECIPE_FILE).read_text())
    except (OSError, ValueError):
        return ""
    explorer = recipe.get("explorer") if isinstance(recipe, dict) else None
    name = explorer.get("render") if isinstance(explorer, dict) else None
    return name if isinstance(name, str) else ""


def rendered(run_dir: Path, name: str, row: Mapping[str, object]) -> Rendered:
    """The renderer's result for a row, or the reason why there is none."""
    own_code = run_dir / OWN_CODE_FILE
    folders = own_code.read_text() if own_code.is_file() else ""
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    child = Child("rft_data.web.render_child", name, folders, on_line=lines.append)
    try:
        child.send(json.dumps(_plain(row), default=str).encode() + b"\n")
        answer = json.loads(child.line(DEADLINE_S))
    except TimeoutError:
        return Rendered(name, wrong=f"it took longer than {DEADLINE_S:g} s and was ended.")
    except EOFError:
        how = how_it_ended(child.end(DEADLINE_S))
        return Rendered(name, wrong=f"its process ended with {how}. {' '.join(lines)}".rstrip())
    finally:
        child.close()
    if "wrong" in answer:
        return Rendered(name, wrong=str(answer["wrong"]))
    return _shown(name, answer["made"])


def _plain(row: Mapping[str, Any]) -> dict[str, object]:
    """The row with its JSON columns read."""
    known = {field.name for field in EXPERIENCES if is_json(field)}
    return {key: json.loads(value) if key in known and value else value for key, value in row.items()}


def _shown(name: str, made: object) -> Rendered:
    if isinstance(made, str):
        return Rendered(name, text=made)
    if isinstance(made, Mapping):
        return Rendered(name, rows=tuple((str(key), _cell(made[key])) for key in list(made)[:MOST_ROWS]))
    if isinstance(made, Sequence) and all(isinstance(one, Mapping) for one in made):
        head = tuple(dict.fromkeys(str(key) for one in made[:MOST_ROWS] for key in one))[:MOST_COLUMNS]
        cells = tuple(tuple(_cell(one.get(key, "")) for key in head) for one in made[:MOST_ROWS])
        return Rendered(name, head=head, rows=cells)
    if isinstance(made, Sequence) and all(isinstance(one, list) for one in made):
        rows = tuple(tuple(map(_cell, one[:MOST_COLUMNS])) for one in made[:MOST_ROWS])
        return Rendered(name, rows=rows)
    return Rendered(
        name, wrong=f"it returned {json.dumps(made):.80}; wanted a text, a mapping, or a list of rows."
    )


def _cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
