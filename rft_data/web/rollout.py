"""One experience as it is stored, with what belongs to it: advantage, tokenizer, other columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rft_data.core.stored_rows import ExperienceRow
from rft_data.core.words import ROLLOUT_SECONDS
from rft_data.reading.lineage_parts import Judgement

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def advantage(verdicts: Sequence[Judgement]) -> tuple[float, ...] | None:
    """What the newest pipeline that kept the row gave it."""
    kept = [one.advantage for one in verdicts if one.advantage is not None]
    return kept[-1] if kept else None


def run_tokenizer(run_dir: Path | None) -> Tokenizer | None:
    """The tokenizer of a run's model; None where its folder has none."""
    if run_dir is None:
        return None
    places = [run_dir / "model", run_dir / "final", *sorted(run_dir.glob("weights/v*"), reverse=True)]
    file = next(
        (folder / "tokenizer.json" for folder in places if (folder / "tokenizer.json").is_file()), None
    )
    if file is None:
        return None
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(file))


def beside(row: ExperienceRow) -> list[tuple[str, str]]:
    """What an environment, a workflow or an importer keeps beside the row: name, and value as JSON."""
    found: list[tuple[str, object]] = []
    if row["environment"]:
        found.append(("environment", row["environment"]))
    found += [pair for pair in json.loads(row["metadata"] or "{}").items() if pair[0] != ROLLOUT_SECONDS]
    for name in ("sampling", "tools"):
        if (text := row[name]) and (value := json.loads(text)):
            found.append((name, value))
    return [
        (str(name), value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False))
        for name, value in found
    ]
