"""Views of experiences: those of a group, and one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi.responses import HTMLResponse, JSONResponse

from rft_data.core.stored_rows import ExperienceRow
from rft_data.core.words import ROLLOUT_SECONDS
from rft_data.reading.group_view import group_view
from rft_data.reading.lineage import row_lineage, stored_row
from rft_data.reading.lineage_parts import Judgement
from rft_data.web.conversation import conversation
from rft_data.web.overlay import Overlay, facts, tokens
from rft_data.web.page import Route, View
from rft_data.web.rendering import rendered, run_renderer
from rft_data.web.rollout_seconds import shares
from rft_data.web.side_by_side import Against, side_by_side
from rft_data.web.statements import about_row
from rft_data.web.step_numbers import trained_in, trained_tokens
from rft_data.web.timeline import timeline

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class ExperienceViews(View):
    """Views of experiences: the table, and one row."""

    def routes(self) -> Iterator[Route]:
        yield Route("/s/{key}/groups/{group_id:path}", self.group)
        yield Route("/s/{key}/rows/{seq}", self.row)
        yield Route("/s/{key}/rows/{seq}/json", self.row_json)

    def group(self, key: str, group_id: str, against: Against = Against.BEST) -> HTMLResponse:
        """The rollouts of a group side by side."""
        found = group_view(self._page.subjects.buffer(key), group_id)
        asked = [] if found.task is None else found.task.messages
        return self._page.shown(
            "group.html",
            subject=self._page.subjects[key],
            group=found,
            found=side_by_side(found.members, against),
            against=against,
            choices=list(Against),
            prompt=conversation(asked, len(asked)),
        )

    def row(self, key: str, seq: int, overlay: Overlay = Overlay.PROBABILITY) -> HTMLResponse:
        """One experience: its conversation, its tokens, where it came from and what became of it."""
        buffer, subject = self._page.subjects.buffer(key), self._page.subjects[key]
        row = stored_row(buffer, seq)
        line = row_lineage(buffer, row)
        own_run = self._page.own_run(key)
        known = facts(row, _advantage(line.judgements), trained_tokens(buffer, line, own_run))
        tokenizer = _tokenizer(subject.run_dir)
        name = run_renderer(subject.run_dir)
        made = (
            rendered(subject.run_dir, name, row) if self._page.renders and subject.run_dir and name else None
        )
        return self._page.shown(
            "row.html",
            moments=timeline(buffer, line, row["created_at"]),
            spent=shares(row["metadata"]),
            trained=trained_in(buffer, line, own_run),
            renderer=name,
            rendered=made,
            subject=subject,
            row=row,
            line=line,
            messages=conversation(json.loads(row["messages"] or "[]"), row["prompt_messages"]),
            **about_row(buffer, subject, row),
            tokens=tokens(row["token_ids"] or [], row["prompt_length"], known, overlay, tokenizer),
            own_run=own_run,
            overlay=overlay,
            overlays=known.known(),
            beside=_beside(row),
        )

    def row_json(self, key: str, seq: int) -> JSONResponse:
        """One experience with every column."""
        buffer = self._page.subjects.buffer(key)
        found = {"row": stored_row(buffer, seq)}
        return JSONResponse(json.loads(json.dumps(found, default=str)))


def _advantage(verdicts: Sequence[Judgement]) -> tuple[float, ...] | None:
    """Values that the newest pipeline that kept the row gave it."""
    kept = [one.advantage for one in verdicts if one.advantage is not None]
    return kept[-1] if kept else None


def _tokenizer(run_dir: Path | None) -> Tokenizer | None:
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


def _beside(row: ExperienceRow) -> list[tuple[str, str]]:
    """Facts that an environment, a workflow or an importer keeps beside the row: name, and value as JSON."""
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
