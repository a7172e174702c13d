"""People who use the page: the person whose link a request came by, and what that person may do."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from rft_data.core.errors import RecipeError


@dataclass(frozen=True, slots=True)
class Person:
    """An author of feedback."""

    name: str
    curates: bool = True
    """Whether this person decides what is trained on: corrects, quarantines and re-admits rows, retires
    tasks. Who does not may score, comment, tag and choose."""

    def form_token(self, secret: str) -> str:
        """Token that the forms of this person's pages carry: those of another person's are refused."""
        return hmac.new(secret.encode(), self.name.encode(), hashlib.sha256).hexdigest()


def people(authors: Sequence[str], raters: Sequence[str]) -> list[Person]:
    """The people who get a link. Raises: RecipeError for a name that is empty, double or not printable."""
    found = [*map(Person, authors), *(Person(name, curates=False) for name in raters)]
    for place, one in enumerate(found):
        twice = one.name in [other.name for other in found[:place]]
        if twice or not one.name.strip() or not one.name.isprintable():
            why = "is there twice" if twice else "is no name"
            raise RecipeError(f"the author {one.name!r} {why}; give each person a name of their own.")
    return found


_SPEAKING: ContextVar[Person | None] = ContextVar("who is looking at the page", default=None)


@contextmanager
def speaking(person: Person | None) -> Iterator[None]:
    """Answer a request of this person inside the block."""
    before = _SPEAKING.set(person)
    try:
        yield
    finally:
        _SPEAKING.reset(before)


def speaker() -> Person | None:
    """Person whose request is answered now; None where links have no persons."""
    return _SPEAKING.get()
