"""Filters as one line of text, for the command line: `reward >= 0.5 and not (source = 'eval')`.

Its own small grammar, not SQL: columns, = != < <= > >=, in (...), not in (...), is [not] null,
contains 'text', starts with 'text', and, or, not, parentheses; numbers and quoted texts (a quote inside
a text is written twice).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from rft_data.core.errors import RecipeError
from rft_data.core.filters.tree import (
    MAX_DEPTH,
    And,
    Compare,
    Contains,
    Filter,
    In,
    IsNull,
    Not,
    Op,
    Or,
    Scalar,
    bind,
)

MAX_TEXT = 100_000
"""Characters."""
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))"
    r"|(?P<string>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")"
    r"|(?P<word>[^\W\d]\w*)"
    r"|(?P<sign><=|>=|!=|<>|==|[=<>(),]))"
)
_SIGNS: dict[str, Op] = {
    "=": "eq",
    "==": "eq",
    "!=": "ne",
    "<>": "ne",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
}
_WRITTEN: dict[Op, str] = {"eq": "=", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def parse_text(text: str, schema: pa.Schema) -> Filter:
    """The filter that a line of text describes, checked against `schema`.

    Raises: RecipeError saying where reading stopped, or every problem with columns and values.
    """
    return bind(read_text(text), schema)


def read_text(text: str) -> Filter:
    """The filter that a line of text describes, with its values as they are written.

    Raises: RecipeError saying where reading stopped.
    """
    return _Parser(text).parse()


def to_text(filter_: Filter) -> str:
    """A filter as a line that `read_text` reads back; for filters that came out of text.

    Raises: RecipeError for one that no text describes: an empty list, or a value that is a time.
    """
    match filter_:
        case And(parts) if parts:
            return " and ".join(_inside(part, And, Or) for part in parts)
        case Or(parts) if parts:
            return " or ".join(_inside(part, Or) for part in parts)
        case Not(part):
            return f"not {_inside(part, And, Or)}"
        case IsNull(column):
            return f"{column} is null"
        case In(column, values) if values:
            return f"{column} in ({', '.join(map(_value, values))})"
        case Contains(column, text, prefix):
            return f"{column} {'starts with' if prefix else 'contains'} {_value(text)}"
        case Compare(column, op, value):
            return f"{column} {_WRITTEN[op]} {_value(value)}"
    raise RecipeError(f"the filter has a part without values ({filter_!r:.80}), which no text describes.")


def _inside(filter_: Filter, *grouped: type[Filter]) -> str:
    """A filter inside another; in parentheses, which count as depth, where it is of such a kind."""
    return f"({to_text(filter_)})" if isinstance(filter_, grouped) else to_text(filter_)


def _value(value: Scalar) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int | float):
        return repr(value)
    raise RecipeError(f"the filter holds the time {value}, which no text describes.")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > MAX_TEXT:
            raise RecipeError(f"the filter is {len(text)} characters long; at most {MAX_TEXT} are allowed.")
        self._tokens = list(self._split())
        self._place = 0
        self._depth = 0

    def _split(self) -> Iterator[_Token]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None:
                rest = self._text[at:].lstrip()
                hint = " (a quote is not closed)" if rest[0] in "'\"" else ""
                raise self._stopped(len(self._text) - len(rest), f"cannot read {rest[:20]!r}{hint}")
            kind = str(found.lastgroup)
            yield _Token(kind, found.group(kind), found.start(kind))
            at = found.end()
        yield _Token("end", "", end)

    def parse(self) -> Filter:
        made = self._or()
        if self._now.kind != "end":
            raise self._wanted("'and', 'or' or the end")
        return made

    def _or(self) -> Filter:
        parts = [self._and()]
        while self._take("or"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _and(self) -> Filter:
        parts = [self._one()]
        while self._take("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _one(self) -> Filter:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._stopped(self._now.at, f"nested deeper than {MAX_DEPTH}")
        try:
            if self._take("not"):
                return Not(self._one())
            if self._take("("):
                inner = self._or()
                self._need(")")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Filter:
        if self._now.kind != "word":
            raise self._wanted("a column name")
        column = self._next().text
        if self._now.text in _SIGNS:
            op = _SIGNS[self._next().text]
            return Compare(column, op, self._value())
        if self._take("is"):
            negated = self._take("not")
            self._need("null")
            return Not(IsNull(column)) if negated else IsNull(column)
        negated = self._take("not")
        made = self._word_operator(column)
        return Not(made) if negated else made

    def _word_operator(self, column: str) -> Filter:
        if self._take("in"):
            self._need("(")
            values = [self._value()]
            while self._take(","):
                values.append(self._value())
            self._need(")")
            return In(column, tuple(values))
        if self._take("contains"):
            return Contains(column, self._string())
        if self._take("starts"):
            self._need("with")
            return Contains(column, self._string(), prefix=True)
        raise self._wanted(f"an operator after '{column}' (= != < <= > >= in is contains starts)")

    def _value(self) -> Scalar:
        token = self._now
        if token.kind == "string":
            return self._string()
        if token.kind != "number":
            quote = f"; write texts in quotes: '{token.text}'" if token.kind == "word" else ""
            raise self._wanted(f"a number or a text in quotes{quote}")
        self._next()
        try:
            return int(token.text)
        except ValueError:
            return float(token.text)

    def _string(self) -> str:
        if self._now.kind != "string":
            raise self._wanted("a text in quotes")
        token = self._next().text
        return token[1:-1].replace(token[0] * 2, token[0])

    @property
    def _now(self) -> _Token:
        return self._tokens[self._place]

    def _next(self) -> _Token:
        self._place += 1
        return self._tokens[self._place - 1]

    def _take(self, word: str) -> bool:
        if self._now.kind in ("word", "sign") and self._now.text.lower() == word:
            self._place += 1
            return True
        return False

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise self._wanted(f"'{word}'")

    def _wanted(self, what: str) -> RecipeError:
        found = f"'{self._now.text}'" if self._now.kind != "end" else "the end"
        return self._stopped(self._now.at, f"wanted {what}, found {found}")

    def _stopped(self, at: int, why: str) -> RecipeError:
        shown = self._text.replace("\n", " ")
        start = max(0, at - 60)
        return RecipeError(
            f"the filter is not valid: {why}.\n  {shown[start : at + 40]}\n  {' ' * (at - start)}^"
        )
