"""In which values two recipes differ, after presets and defaults.

Entries of lists are paired by what names them, such as the algorithm of a stage; those left over by order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rft_data.recipe.leaves import dotted, leaves
from rft_data.recipe.public_keys import shown_leaves
from rft_data.recipe.recipe import Recipe
from rft_data.recipe.section import Loc

_NAMES = ("name", "taskset", "algorithm", "use")
"""Keys that name an entry of a list; an operator's entry has its name as its only key."""
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose value is not the same in both."""

    key: str
    """Its place; an entry that stands elsewhere in the other recipe is named: `stages[grpo].steps`."""
    values: dict[str, object]
    """The value by side, `left` or `right`; a side that lacks the key is not in it."""
    places: dict[str, str]
    """The key by side, as overrides name it."""


def differences(left: Recipe, right: Recipe) -> Iterator[Difference]:
    """Every key that differs, in the order of the recipes. Values of the environment show as in `explain`."""
    found = _Comparison(dict(shown_leaves(left)), dict(shown_leaves(right)))
    return found.of_nodes("", left.saved(), right.saved(), (), ())


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Compares the trees of two recipes."""

    left: dict[Loc, object]
    """Every value, by its place."""
    right: dict[Loc, object]

    def of_nodes(self, key: str, left: Any, right: Any, at: Loc, other: Loc) -> Iterator[Difference]:
        """The differences below a key. Args: at, other: its places in the left and the right recipe."""
        if type(left) is not type(right) or not (_has_more(left) and _has_more(right)):
            sides = (("left", left, at, self.left), ("right", right, other, self.right))
            yield from self._of_values(key, *sides)
            return
        if isinstance(left, list):
            yield from _other_order(key, left, right, at, other)
        parts = _entries(left, right) if isinstance(left, list) else _keys(left, right)
        for name, here, there in parts:
            yield from self.of_nodes(
                f"{key}{name}".removeprefix("."),
                _NOTHING if here is None else left[here],
                _NOTHING if there is None else right[there],
                at if here is None else (*at, here),
                other if there is None else (*other, there),
            )

    def _of_values(
        self, key: str, *sides: tuple[str, object, Loc, dict[Loc, object]]
    ) -> Iterator[Difference]:
        """Differences of two nodes of which not both have keys, or entries, of their own."""
        values: dict[str, dict[str, object]] = {}
        places: dict[str, dict[str, str]] = {}
        for side, node, at, known in sides:
            for inner, _ in leaves(node) if node is not _NOTHING else ():
                inside = ".".join([key, dotted(inner)]) if inner else key
                values.setdefault(inside, {})[side] = known[(*at, *inner)]
                places.setdefault(inside, {})[side] = dotted((*at, *inner))
        for inside, found in values.items():
            if len(found) == 1 or found["left"] != found["right"]:
                yield Difference(inside, found, places[inside])


def _has_more(node: object) -> bool:
    return isinstance(node, dict | list) and bool(node)


def _keys(left: dict[str, object], right: dict[str, object]) -> Iterator[tuple[str, str | None, str | None]]:
    for name in dict.fromkeys([*left, *right]):
        yield f".{name}", name if name in left else None, name if name in right else None


def _entries(left: Sequence[object], right: Sequence[object]) -> Iterator[tuple[str, int | None, int | None]]:
    """Pairs of entries: their name in a key, and their numbers, None for an entry that has no other."""
    names, others = _entry_names(left), _entry_names(right)
    if names is None or others is None:
        yield from ((f".{n}", n if n < len(left) else None, n if n < len(right) else None)
                    for n in range(max(len(left), len(right))))  # fmt: skip
        return
    alone = iter([number for number, name in enumerate(others) if name not in names])
    for number, name in enumerate(names):
        other = others.index(name) if name in others else next(alone, None)
        yield f".{number}" if number == other else f"[{name}]", number, other
    yield from ((f"[{others[number]}]", None, number) for number in alone)


def _entry_names(entries: Sequence[object]) -> list[str] | None:
    """The name of each entry, counted where others have the same; None where one has no name."""
    names = [_name(one) for one in entries]
    seen: Counter[str | None] = Counter()
    found = []
    for name in names:
        if name is None:
            return None
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return found


def _name(entry: object) -> str | None:
    if not isinstance(entry, dict):
        return None
    named = next((str(entry[key]) for key in _NAMES if entry.get(key)), None)
    return str(next(iter(entry))) if named is None and len(entry) == 1 else named


def _other_order(
    key: str, left: Sequence[object], right: Sequence[object], at: Loc, other: Loc
) -> Iterator[Difference]:
    """A difference if entries of the same names come in another order."""
    names, others = _entry_names(left) or [], _entry_names(right) or []
    if [one for one in names if one in others] != [one for one in others if one in names]:
        places = {"left": dotted(at), "right": dotted(other)}
        yield Difference(f"{key} (order)", {"left": names, "right": others}, places)
