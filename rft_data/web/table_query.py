"""The query in a link to the table of experiences (filter, search, order), and links to other queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field

from rft_data.core.filters import Compare, Filter, to_text
from rft_data.web.row_choice import AskedVerdict, Choice, chosen, joined, pieces
from rft_data.web.row_order import Order

_Short = Annotated[str, Field(max_length=2_000)]


class Asked(BaseModel):
    """The query of a link to a table of experiences; the link is a permanent one."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    where: _Short = ""
    """The typed filter."""
    verdict: AskedVerdict = ""
    words: _Short = ""
    """Words to search completions for; the order is then how well they fit."""
    means: _Short = ""
    """A text: the experiences whose completions mean most nearly the same."""
    like: Annotated[int | None, Field(ge=0, lt=2**62)] = None
    """Row number: the experiences whose completions mean most nearly the same."""
    model: _Short = ""
    """The model whose vectors `like` and `means` compare; empty: the first that there is."""
    order: Order = Order.NEWEST
    below: Annotated[int | None, Field(ge=0, lt=2**62)] = None
    """Row number below which a page of NEWEST begins."""
    after: Annotated[str, Field(max_length=100)] = ""
    """Key of the row after which a page of another order begins."""

    @property
    def choice(self) -> Choice:
        """Raises: RecipeError that says what is wrong with the filter."""
        return chosen(self.where, self.verdict)

    @property
    def first_page(self) -> bool:
        """Whether it is the first page of what is asked for."""
        return self.below is None and not self.after

    @property
    def by_text(self) -> bool:
        """Whether the rows are those that mean most nearly what a text does; words and a row go before it."""
        return bool(self.means) and not self.words and self.like is None

    def link(self, **other: object) -> str:
        """The query of a link that asks for something else; on its first page unless that says otherwise."""
        values = self.model_dump(mode="json") | {"below": None, "after": ""} | other
        if values["order"] == Order.NEWEST:
            del values["order"]
        return "?" + urlencode([(name, value) for name, value in values.items() if value not in ("", None)])

    def chips(self) -> list[Chip]:
        """Filters of the table, each with the link without it; for a filter that `choice` accepts."""
        parts = pieces(self.where)
        found = [
            Chip(part, self.link(where=joined(parts[:place] + parts[place + 1 :])))
            for place, part in enumerate(parts)
        ]
        if self.verdict:
            found.append(Chip(f"verdict: {self.verdict}", self.link(verdict="")))
        if self.words:
            found.append(Chip(f"words: {self.words}", self.link(words="")))
        if self.means:
            found.append(Chip(f"means: {self.means}", self.link(means="", model="")))
        if self.like is not None:
            found.append(Chip(f"like row {self.like}", self.link(like=None, model="")))
        return found


@dataclass(frozen=True, slots=True)
class Chip:
    """One thing that narrows a table."""

    text: str
    without: str
    """The query of the link without it."""


class Narrowed(Asked):
    """The form of common filters: what was asked for, and what is to narrow it."""

    reward_from: float | Literal[""] = ""
    reward_to: float | Literal[""] = ""
    taskset: _Short = ""
    source: _Short = ""
    finish_reason: _Short = ""
    version_from: int | Literal[""] = ""
    version_to: int | Literal[""] = ""

    def query(self) -> str:
        """The query of the permanent link, with all of it as a typed filter.

        Raises: RecipeError that says what is wrong with the filter.
        """
        added: list[Filter] = []
        if self.reward_from != "":
            added.append(Compare("reward", "ge", self.reward_from))
        if self.reward_to != "":
            added.append(Compare("reward", "le", self.reward_to))
        for column in ("taskset", "source", "finish_reason"):
            if value := getattr(self, column):
                added.append(Compare(column, "eq", value))
        if self.version_from != "":
            added.append(Compare("version_min", "ge", self.version_from))
        if self.version_to != "":
            added.append(Compare("version_max", "le", self.version_to))
        where = joined(list(dict.fromkeys([*pieces(self.where), *map(to_text, added)])))
        chosen(where)
        asked = Asked(**self.model_dump(include=set(Asked.model_fields)))
        return asked.link(where=where)
