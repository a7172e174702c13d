"""The columns that an import names, and how they become the columns of a format.

Prompts are read as those of tasksets: text is what a user says, chat messages are taken as they are, dots
lead into nested columns, braces make a template. Answers that are text become messages of the assistant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from rft_data.core.errors import RecipeError, RowError
from rft_data.core.json_types import Json
from rft_data.core.rows import Message
from rft_data.exchange.formats.preferences import PREFERENCE
from rft_data.exchange.formats.records import Format, Origin, Record, Row
from rft_data.exchange.formats.trl import COMPLETION, UNPAIRED
from rft_data.tasks.columns import answer_text, is_template, prompt_messages, template_fields, value_at

WANTED = "'prompt' and 'completion' for answers, 'prompt', 'chosen' and 'rejected' for preference pairs"
"""The columns that an import may name, as messages say it."""


@dataclass(frozen=True, slots=True)
class ImportColumns:
    """Columns, or templates of columns, for each part of an answer or a pair.

    Raises: RecipeError for a choice that makes neither, and for a broken template.
    """

    prompt: str | None = None
    completion: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    """The worse answer; without `prompt`, both answers contain it."""
    label: str | None = None
    """Whether the completion is desirable, for KTO."""

    def __post_init__(self) -> None:
        given = self.named
        is_answer = {"prompt", "completion"} <= set(given) <= {"prompt", "completion", "label"}
        is_pair = {"chosen", "rejected"} <= set(given) <= {"prompt", "chosen", "rejected"}
        if given and not is_answer and not is_pair:
            raise RecipeError(
                f"the columns named are {', '.join(map(repr, given))}; name {WANTED} ('label' beside "
                "'completion' for KTO)"
            )
        for text in given.values():
            if is_template(text):
                template_fields(text)

    @property
    def named(self) -> dict[str, str]:
        """The parts that have a column, and which."""
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: column for name, column in parts.items() if column is not None}

    def format(self) -> Format | None:
        """The format that reads rows by these columns; None where none is named."""
        if not self.named:
            return None
        base = PREFERENCE if self.chosen is not None else COMPLETION if self.label is None else UNPAIRED
        read = base.read
        assert read is not None  # noqa: S101 - of the three

        def mapped(row: Row, origin: Origin) -> Sequence[Record]:
            return read(self.row(row), origin)

        return replace(base, read=mapped)

    def row(self, row: Row) -> Row:
        """The row with TRL's columns. Raises: RowError for a column that is not there or holds nothing."""
        found = {part: _value(row, part, column) for part, column in self.named.items()}
        kept = {name: value for name, value in row.items() if name not in self.named.values()}
        answers = [part for part in ("completion", "chosen", "rejected") if part in found]
        if "prompt" in found and not _repeats(found["prompt"], found[answers[0]]):
            found["prompt"] = _messages(prompt_messages(found["prompt"], f"'prompt' ({self.prompt})"))
        if "prompt" in found:
            found |= {part: _answer(found[part]) for part in answers}
        return {**kept, **found}


def _value(row: Row, part: str, column: str) -> Json:
    """The value of a part of a row; a number as text. Raises: RowError."""
    value = value_at(row, column, f"'{part}'")
    if value is None or value == "" or value == []:
        raise RowError(f"'{part}' (column '{column}') is empty")
    return value if isinstance(value, list) else answer_text(value)


def _answer(value: Json) -> Json:
    return value if isinstance(value, list) else [{"role": "assistant", "content": value}]


def _messages(made: Sequence[Message]) -> Json:
    return [dict(one) for one in made]


def _repeats(prompt: Json, answer: Json) -> bool:
    """Whether a conversation that is an answer begins with the prompt's text, as UltraFeedback's do."""
    return isinstance(answer, list) and {"role": "user", "content": prompt} in answer[:-1]
