"""The file and line that wrote each value of a recipe, or the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rft_data.recipe.section import Loc


@dataclass(frozen=True, slots=True)
class Origin:
    """The place at which a value was written."""

    file: Path | None
    """None: the command line."""
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return "command line" if self.file is None else f"{self.file}:{self.line}:{self.column}"

    @property
    def short(self) -> str:
        """File and line, without the column."""
        return "command line" if self.file is None else f"{self.file}:{self.line}"


COMMAND_LINE = Origin(None)
_MODE = ("mode",)


class Origins:
    """The origin of every value, by its place."""

    def __init__(self, file: Path) -> None:
        """Args: file: the recipe that was named, which is the origin of values that no file wrote."""
        self.file = file
        self._found: dict[Loc, Origin] = {(): Origin(file)}

    def note(self, loc: Loc, origin: Origin) -> None:
        """Remember who wrote the value at `loc`."""
        self._found[loc] = origin

    def forget(self, loc: Loc) -> None:
        """Forget a value and everything inside it."""
        self._found = {at: origin for at, origin in self._found.items() if at[: len(loc)] != loc}

    def remove_entry(self, loc: Loc) -> None:
        """Forget a list's entry; those after it move up by one."""
        self.forget(loc)
        *above, number = loc
        moved = {}
        for at, origin in self._found.items():
            inside = at[: len(above)] == tuple(above) and len(at) >= len(loc)
            place = at[len(above)] if inside else None
            if isinstance(place, int) and isinstance(number, int) and place > number:
                at = (*above, place - 1, *at[len(loc) :])
            moved[at] = origin
        self._found = moved

    def find(self, loc: Loc) -> Origin:
        """The origin of a value, or of the innermost section around it that was written.

        Of a section that nobody wrote: that of `mode`, which says which sections there are.
        """
        if loc and loc[:1] not in self._found and _MODE in self._found:
            return self._found[_MODE]
        return next(self._found[loc[:end]] for end in range(len(loc), -1, -1) if loc[:end] in self._found)

    def order(self, loc: Loc) -> tuple[bool, bool, str, int, int]:
        """Sorts places as a reader meets them: the named recipe, other files, the command line."""
        origin = self.find(loc)
        return (
            origin.file is None,
            origin.file != self.file,
            str(origin.file),
            origin.line,
            origin.column,
        )
