"""Dry runs and readmissions as text for terminals. What is not printable is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NotRequired, TypedDict, cast

from rft_data.core.text import escaped, shown
from rft_data.core.words import Verdict
from rft_data.run.rejudge.compare import Difference
from rft_data.run.rejudge.dry_run import DryRun, Replay
from rft_data.run.rejudge.readmit import Readmitted
from rft_data.run.rejudge.tally import OperatorTally

_REASON = 90


class _Row(TypedDict):
    """A row as a dry run shows it (`SHOWN_COLUMNS`)."""

    experience_id: str
    verdict: Verdict
    dropped_by: str
    reason: str
    advantage: Sequence[float] | None
    shaped_reward: float | None
    masked: NotRequired[bool | None]


def dry_run_text(found: DryRun, names: tuple[str, str]) -> str:
    """The report; `names` of the recipe and of what it is compared with."""
    return "\n".join(_dry_run_lines(found, names))


def _dry_run_lines(found: DryRun, names: tuple[str, str]) -> Iterator[str]:
    yield f"{found.first.rows} rows of {found.groups} groups; nothing is written"
    for name, replay in zip(names, (found.first, found.second), strict=True):
        if replay is not None:
            yield from _replay_lines(name, replay)
    if found.difference is not None:
        yield from _difference_lines(found.difference, names)
    if found.rows:
        yield ""
        yield from map(_row_line, found.rows)


def _replay_lines(name: str, replay: Replay) -> Iterator[str]:
    yield ""
    counts = f"kept {replay.kept}, dropped {replay.dropped}, quarantined {replay.quarantined}"
    yield f"{shown(name)} (pipeline {replay.pipeline_hash[:12]}): {counts}"
    yield f"  {'operator':<34}{'in':>9}{'out':>9}{'dropped':>9}{'quarant.':>9}{'kept %':>8}{'seconds':>9}"
    for operator in replay.operators:
        yield _operator_line(operator)
        for reason in operator.reasons:
            yield f"      {reason.rows:>7} x {shown(reason.kind, _REASON)}"
            yield f"      {'':>7}   such as: {shown(reason.example, _REASON)}"


def _operator_line(operator: OperatorTally) -> str:
    rate = "-" if operator.keep_rate is None else f"{100 * operator.keep_rate:.1f}"
    counts = (operator.rows_in, operator.rows_out, operator.dropped, operator.quarantined)
    cells = "".join(f"{count:>9}" for count in counts)
    return f"  {operator.name:<34}{cells}{rate:>8}{operator.seconds:>9.3f}"


def _difference_lines(difference: Difference, names: tuple[str, str]) -> Iterator[str]:
    first, second = map(shown, names)
    yield ""
    yield f"{first} against {second}, {difference.rows} rows"
    yield f"  kept by both               {difference.both:>9}"
    yield f"  kept by {first} only: {difference.only_first}"
    yield f"  kept by {second} only: {difference.only_second}"
    if difference.unjudged:
        yield f"  not judged by {second}: {difference.unjudged}"
    for what in ("advantage", "shaped"):
        changed, largest = getattr(difference, f"{what}_changed"), getattr(difference, f"{what}_max")
        yield f"  {what:<10} differs         {changed:>9}  (by up to {largest:.6g})"
    if difference.masked_changed:
        yield f"  mask       differs         {difference.masked_changed:>9}"
    for example in difference.examples:
        yield f"    {escaped(example.experience_id)}"
        yield f"      {first}: {shown(example.first, _REASON)}"
        yield f"      {second}: {shown(example.second, _REASON)}"


def _row_line(line: Mapping[str, object]) -> str:
    row = cast("_Row", line)
    if row["verdict"] != Verdict.KEPT:
        what = f"{row['verdict']} by {escaped(row['dropped_by'])}: {shown(row['reason'], _REASON)}"
    else:
        advantage = _advantage(row["advantage"] or [])
        masked = ", masked" if row.get("masked") else ""
        shaped = "" if row["shaped_reward"] is None else f", shaped reward {row['shaped_reward']:.4g}"
        what = f"kept, advantage {advantage}{shaped}{masked}"
    return f"{escaped(row['experience_id'])}  {what}"


def _advantage(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:+.4g}"
    return f"{len(values)} values" if values else "none"


def readmitted_text(found: Readmitted) -> str:
    """Groups that were readmitted, and what to do with them."""
    lines = [
        f"run '{shown(found.run_id)}': {found.rejected} groups to judge",
        f"  admitted now          {found.admitted:>9}  ({found.rows} rows) as run '{shown(found.new_run)}'",
        f"  admitted before       {found.already:>9}",
        f"  elsewhere             {found.elsewhere:>9}  (under another run id, or leased)",
        f"  set aside             {found.set_aside:>9}",
        f"  still rejected        {found.still_rejected:>9}",
        *(
            f"    by {escaped(name) or '?':<18}{count:>9}"
            for name, count in sorted(found.rejected_by.items())
        ),
    ]
    if found.admitted + found.already:
        lines.append(
            "train on them with a recipe of mode: train, the same experience_ops and "
            f"explored_by: {shown(found.new_run)}"
        )
    return "\n".join(lines)
