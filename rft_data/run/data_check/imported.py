"""Checks what a run would import: rows that fit no format; answers and pairs as stages train on them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rft_data.buffer import Buffer
from rft_data.core.chat import message_text
from rft_data.core.codec import to_preferences
from rft_data.core.errors import RftError
from rft_data.core.lookup import is_import_path
from rft_data.core.model_folder import most_positions
from rft_data.core.rows import PreferencePair
from rft_data.recipe.import_columns import ImportColumns
from rft_data.recipe.imports import Import
from rft_data.recipe.named_source import named_rows
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.recipe import RunRecipe
from rft_data.run import build
from rft_data.run.data_check.fed import feeds_none, unfed
from rft_data.run.data_check.prompts import measured, spread
from rft_data.run.data_check.report import DataReport, Example, TasksetReport
from rft_data.run.imports import stored_import

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SHOWN = 3
_ANSWERS = (("chosen", "rejected"), ("completion",))
"""Names of columns with answers."""
_COLUMNS = ("experience_id", "messages", "prompt_messages", "tools", "metadata")


def named_import(text: str, columns: Mapping[str, str]) -> Import:
    """The import of a file, folder or dataset of a hub, by its path, or of a function.

    Args: columns: the parts that were named. Where no answer is, the columns that are called as one are.
    Raises: RecipeError for columns that make neither an answer nor a pair; what opening the source raises.
    """
    is_function = is_import_path(text) and not Path(text).exists()
    named = {"source": {"use": text}} if is_function else {"path": text}
    found = dict(columns)
    if found and found.keys() <= {"prompt", "label"}:
        first = next(named_rows(text).rows, None)
        there = {} if first is None or first.row is None else first.row
        answers = next((some for some in _ANSWERS if there.keys() >= {*some}), ())
        found |= {name: name for name in answers}
    ImportColumns(**found)  # raises for parts that do not go together
    return Import.model_validate({**named, **found})


def check_imports(recipe: RunRecipe, sections: Sequence[Import]) -> DataReport:
    """Import every section into a buffer for now, and look at what it becomes.

    Args: recipe: whose model and stages the rows are for; sections: of its own, or one that it lacks yet.
    """
    report = DataReport([])
    report.problems += map(str, import_problems(recipe, sections, report))
    return report


def import_problems(recipe: RunRecipe, sections: Sequence[Import], report: DataReport) -> list[Problem]:
    """The reason that a recipe cannot train on its imports as a whole; `report` gets the rows of each one.

    Args: as of `check_imports`.
    """
    problems: list[Problem] = []
    view = _View.of(recipe, problems)
    with ExitStack() as opened:
        buffers = []
        for section in sections:
            buffers.append(opened.enter_context(Buffer(opened.enter_context(TemporaryDirectory()))))
            report.tasksets.append(_imported(section, buffers[-1], view))
        if not any(one.problems for one in report.tasksets):  # else that is why
            is_its_own = list(sections) == recipe.imports
            problems += unfed(recipe, buffers) if is_its_own else feeds_none(recipe, buffers)
    return problems


@dataclass(frozen=True, slots=True)
class _View:
    """How stages render answers, and how long they may be."""

    tokenizer: PreTrainedTokenizerBase | None = None
    room: int | None = None
    """The longest row that every stage takes whole: the least `trl.max_length`; None: nothing is cut."""
    positions: int | None = None
    """The longest row that the model reads, where a stage does not cut longer ones; None: of any length."""

    @classmethod
    def of(cls, recipe: RunRecipe, problems: list[Problem]) -> _View:
        """The view of a recipe's model; what is wrong with that is added to `problems`."""
        from explorers.role import load_tokenizer

        model = recipe.starts_from
        cuts = [cut for one in recipe.offline_stages if isinstance(cut := one.trl.get("max_length"), int)]
        room = min(cuts, default=None)
        if model is None or not recipe.offline_stages:  # nothing of it is trained on here
            return cls(None, room)
        try:
            with TemporaryDirectory() as folder:
                at = build.model_folder(model, Path(folder), recipe.seed)
                tokenizer, positions = load_tokenizer(str(at)), most_positions(at)
        except (RftError, OSError, ValueError) as err:
            said = f"the model's tokenizer cannot be loaded, so no token is counted: {err}"
            problems.append(Problem(("model",), said))
            return cls(None, room)
        all_cut = len(cuts) == len(recipe.offline_stages) and max(cuts) <= (positions or 0)
        return cls(tokenizer, room, None if all_cut else positions)


def _imported(section: Import, buffer: Buffer, view: _View) -> TasksetReport:
    named = section.path if section.source is None else section.source.use
    report = TasksetReport(section.taskset or "", str(named), kind="import", stored={})
    try:
        done = stored_import(section, buffer)
    except (RftError, OSError) as err:
        report.problems.append(str(err))
        return report
    report.name, report.source, report.rows = done.taskset, done.source, done.rows
    report.read_as = f"format '{done.format}'"
    report.stored = {name: count for name, count in done.new.items() if count}
    report.duplicates = done.already_there
    if done.quarantined == done.rows:
        report.problems.append(f"no row can be stored; the first because of {done.problems[0]}")
    elif done.quarantined:
        first = "\n    ".join(done.problems[:_SHOWN])
        report.warnings.append(f"{done.quarantined} rows are set aside, the first of them:\n    {first}")
    examples = list(_examples(buffer, view, report))
    report.examples = examples[:_SHOWN]
    if examples:
        sizes = [_length(one) for one in examples]
        report.lengths = measured(
            "characters" if view.tokenizer is None else "tokens",
            sizes,
            view.room if view.tokenizer is not None else None,
        )
        if report.lengths.too_long:
            report.warnings.append(
                f"{report.lengths.too_long} of {report.lengths.measured} have more than {view.room} tokens, "
                "the 'trl.max_length' of a stage, which cuts or leaves them out; raise it"
            )
        if view.positions is not None and (longer := sum(size > view.positions for size in sizes)):
            report.problems.append(
                f"{longer} of {len(sizes)} have more tokens (up to {max(sizes)}) than the model has "
                f"positions ({view.positions}); give every stage trl: {{max_length: {view.positions}}}"
            )
    return report


def _length(one: Example) -> int:
    return len(one.prompt) + len(one.answer or "") if one.tokens is None else one.tokens


def _examples(buffer: Buffer, view: _View, report: TasksetReport) -> Iterator[Example]:
    """Answers and pairs, as they are trained on; those that cannot be are told in the report's warnings."""
    lost: Counter[str] = Counter()
    without_calls = 0
    rows = buffer.read("experiences", list(_COLUMNS)).to_pylist()
    pairs = list(to_preferences(buffer.read("preferences")))
    for one in [*spread(rows), *spread(pairs)]:
        try:
            found, loses = _pair(one, view) if isinstance(one, PreferencePair) else _answer(one, view)
            without_calls += loses
            yield found
        except RftError as err:
            reason = str(err).partition(" and its ")[0] if view.tokenizer is None else str(err)
            lost[reason] += 1
    for reason, count in list(lost.items())[:_SHOWN]:
        report.problems.append(f"{count} cannot be trained on: {reason}")
    if without_calls:
        from trainers.offline.answers import LOST_CALLS  # loads torch

        report.warnings.append(f"{without_calls} of the rows looked at {LOST_CALLS}")


def _answer(row: Any, view: _View) -> tuple[Example, bool]:
    """A row with its answer, and whether its tool calls are lost. Raises: RowError for one without answer."""
    kept = list(json.loads(row["metadata"] or "{}"))
    if view.tokenizer is None:
        messages, split = json.loads(row["messages"]), row["prompt_messages"] or 0
        return Example(_plain(messages[:split]), None, _plain(messages[split:]), kept), False
    from trainers.offline.answers import rendered_row, row_loses_calls  # loads torch

    found = rendered_row(view.tokenizer, row)
    prompt, answer = found.ids[: found.prompt_length], found.ids[found.prompt_length :]
    decode = view.tokenizer.decode
    shown = Example(decode(prompt), len(found.ids), decode(answer), kept)
    return shown, row_loses_calls(view.tokenizer, row, found)


def _pair(pair: PreferencePair, view: _View) -> tuple[Example, bool]:
    """Its prompt and both answers, and whether tool calls are lost. Raises: RowError for one that is none."""
    kept = list(pair.metadata)
    if view.tokenizer is None:
        both = f"better: {_plain(pair.chosen)} | worse: {_plain(pair.rejected)}"
        return Example(_plain(pair.messages), None, both, kept), False
    from trainers.offline.answers import answer_pair, pair_loses_calls  # loads torch

    decode = view.tokenizer.decode
    better, worse = answer_pair(view.tokenizer, pair, {})
    ends = [decode(one.ids[one.prompt_length :]) for one in (better, worse)]
    longest = max(len(better.ids), len(worse.ids))
    prompt = decode(better.ids[: better.prompt_length])
    shown = Example(prompt, longest, f"better: {ends[0]} | worse: {ends[1]}", kept)
    return shown, pair_loses_calls(view.tokenizer, pair, (better, worse))


def _plain(messages: Sequence[Any]) -> str:
    return "\n".join(f"[{one['role']}] {message_text(one)}" for one in messages)
