"""A list of operators as a person wrote it, with the line and column of each mistake.

Refused is what reaches beyond the rows that it is given: code of one's own, files, models and hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rft_data.recipe.invalid import invalid
from rft_data.recipe.names import is_safe, known_operator
from rft_data.recipe.operator_lists import name_operators
from rft_data.recipe.origins import Origin, Origins
from rft_data.recipe.preflight.arguments import argument_problems
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.section import Loc
from rft_data.recipe.yaml_text import parse_yaml

KEY = "experience_ops"
_PLACE = Path("operators")
_ELSEWHERE = {
    "lancedb_write_mapper": "writes the rows that it sees",
    "llm_score_mapper": "asks a language model",
    "semantic_diversity_filter": "loads a model that its arguments name",
}
_FILES = ("buffer", "cache", "uri", "path")
"""Arguments that name a file, a folder or a host."""
_INSTEAD = "try it with `rft data dry-run`"


@dataclass(frozen=True, slots=True)
class OperatorText:
    """Operators, and where each of their values is written."""

    operators: list[dict[str, object]]
    origins: Origins


def read_operators(text: str) -> OperatorText:
    """Operators of a YAML list, alone or under the key `experience_ops`.

    Raises: RecipeError that names each mistake with line and column; also for operators that are refused.
    """
    parsed: Any = parse_yaml(text, str(_PLACE), keep_lines=True)
    origins = Origins(_PLACE)
    if isinstance(parsed, dict) and list(parsed) == [KEY]:
        parsed = parsed[KEY]
    if not isinstance(parsed, list):
        found = "nothing" if parsed is None else f"a {'map' if isinstance(parsed, dict) else 'single value'}"
        message = f"found {found}; wanted a list of operators, for example `- reward_variance_filter: {{}}`"
        raise invalid(origins, [Problem((KEY,), message)])
    _note(parsed, (KEY,), origins)
    tree: dict[str, object] = {KEY: _plain(parsed)}
    name_operators(tree)
    entries: Any = tree[KEY]
    problems = [problem for place, entry in enumerate(entries) for problem in _problems(place, entry)]
    problems = problems or list(argument_problems(tree))
    if problems:
        raise invalid(origins, problems)
    return OperatorText(entries, origins)


def _problems(place: int, entry: object) -> Iterator[Problem]:
    loc = (KEY, place)
    if not isinstance(entry, dict) or len(entry) != 1:
        yield Problem(loc, f"found {type(entry).__name__}; wanted one operator's name with its arguments")
        return
    [(name, args)] = entry.items()
    if not isinstance(name, str) or not (args is None or isinstance(args, dict)):
        yield Problem((*loc, str(name)), "wanted the operator's name, and a map of its arguments")
    elif (why := _refused(name)) is not None:
        yield Problem((*loc, name), f"the page does not run '{name}', which {why}; {_INSTEAD}")
    else:
        try:
            known_operator({name: args})
        except ValueError as err:
            yield Problem((*loc, name), str(err))
            return
        if not is_safe(name):
            yield Problem((*loc, name), f"'{name}' is not on the list of safe operators; {_INSTEAD}")
        for argument in args or {}:
            if argument in _FILES:
                yield Problem(
                    (*loc, name, str(argument)), f"the page gives operators no file and no host; {_INSTEAD}"
                )


def _refused(name: str) -> str | None:
    """The act of an operator that is not done for a request; None: none."""
    if ":" in name:
        return "names code of your own"
    if name.startswith("task_"):
        return "judges tasks, and these are rollouts"
    return _ELSEWHERE.get(name)


def _note(node: Any, loc: Loc, origins: Origins) -> None:
    """Remember the line and column of every value in a tree of ruamel's."""
    is_map, lines = isinstance(node, dict), cast(Any, getattr(node, "lc", None))
    inside = node.items() if is_map else enumerate(node) if isinstance(node, list) else ()
    for key, value in inside:
        try:
            line, column = lines.key(key) if is_map else lines.item(key)
        except (KeyError, IndexError, TypeError):  # what `<<` merged has no line
            line, column = lines.line, lines.col
        below = (*loc, str(key) if is_map else key)
        origins.note(below, Origin(_PLACE, line + 1, column + 1))
        _note(value, below, origins)


def _plain(node: object) -> object:
    """A tree without ruamel's types."""
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    return next((kind(node) for kind in (bool, int, float, str) if isinstance(node, kind)), node)
