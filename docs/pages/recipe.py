"""The page of recipe keys, from the sections: `python -m docs.pages.recipe > docs/recipe.md`."""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from rft_data.recipe.field_docs import field_docs
from rft_data.recipe.modes import MODES
from rft_data.recipe.running import Component, DataPlace
from rft_data.recipe.section import Section
from rft_data.recipe.sections import OnlineEvaluation, Operators
from rft_data.recipe.stages import BatchOps, RlStage
from rft_data.recipe.task_sources import FunctionTasks

_HEAD = """\
# Recipe reference

Every key of a recipe: its type, its default and what it does. Written by `python -m docs.pages.recipe` from
`rft_data/recipe/`; a test keeps it current.

```console
rft recipe list                          # the shipped recipes, by name; show NAME, copy NAME, diff A B
rft recipe new FILE                      # asks for goal, data and model, and writes a commented recipe
rft recipe schema                        # the JSON Schema, for editors; `rft recipe copy` writes it too
rft recipe validate RECIPE               # every problem at once, with file, line and column
rft recipe explain RECIPE                # what a run would come to, and every value with what set it
rft recipe probe RECIPE                  # one task through explorer, operators and loss; updates nothing
rft run RECIPE seed=1 stages.1.steps=20  # any key can be set here; a number names an entry of a list
rft run RECIPE over.yaml '~evaluation'   # another recipe's values over this one's; deletes a key
```

<!-- not run here: rft recipe new: asks a person: tests/rft_data/cli/test_cli_recipe.py -->
<!-- not run here: rft run: tests/rft_data/cli/test_cli.py tests/rft_data/recipe/test_layers.py -->

An unknown key is an error. An `algorithm` sets what the recipe leaves out ([algorithms.md](algorithms.md)).

## Recipes from recipes

```yaml
extends: quickstart        # a shipped recipe's name, or a file seen from this one's folder; or a list of them
name: mine
run_dir: runs/${ref:name}  # the value of another key
buffer: {uri: "${ref:run_dir}/buffer"}
explorer:
  temperature: 0.8         # maps are merged, key by key
  stop: [END]              # anything else is replaced, a list too
stages:
  1: {steps: 40}           # an entry of a list, by its number from 0
~evaluation:               # deletes the key; with `evaluation:` below it, replaces the map
```

Layers come in this order, later ones over earlier ones: what a file `extends`, the file, and then overlays
and changes of the command line as they are written. A file that several layers extend counts once, where it
comes first. `rft recipe explain` says for every value which file and line wrote it, `rft recipe diff` in
what two recipes differ and who wrote that, and errors name the file at fault.

- `${ref:a.b}` is the value that is written at `a.b` (presets and defaults cannot be referred to). Alone it
  keeps its type, and may be a map or a list; inside a text it is text.
- `${env:NAME}` and `${env:NAME:-default}` are read from the environment; alone, the variable's value is
  read as YAML. Such a value is stored and shown (in output, logs, errors) as its reference, also where a
  `${ref:}` took it, unless it is shorter than 4 characters (numbers: 8): that could not be told from other
  text. Paths and names of models and data are shown as they are: those of `path`, `teacher`, `model`,
  `models`, `dataset`, `environment`, `run_dir`, `buffer.uri`, and `use` of an own reward or workflow; they
  are hidden too where they hold user info or a query, or stand at another key besides. Keys of
  services are given by the NAME of their variable (`api_key_env`) and are read where they are used.
- **Paths** of files that are read (`path`, `teacher`, `file.py:name`) are looked for in the working
  directory and then in the folder of the file that wrote them; one that begins with `./` or `../` the other
  way round. Run folders and buffers (`run_dir`, `buffer.uri`) are always seen from the working directory. A
  run stores what it found, and resumes with it.
- `recipe: 1` is the format; a later one is refused by this version. What an older run stored is read as it
  was meant then.
"""

_BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}"}
_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", dict[str, object]: "map"}
_TITLES: Mapping[type[Section], str] = {
    Component: "use and args",
    RlStage: "stages[] (any other algorithm)",
    OnlineEvaluation: "evaluation (mode online)",
    DataPlace: "placement (mode data)",
    FunctionTasks: "tasks[].source (a function of your own)",
}
"""Titles of sections that stand in many places, or that no value of a key chooses."""


@dataclass
class Place:
    """A section, and every place in a recipe where it stands."""

    section: type[Section]
    paths: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its first path; where several sections share that path, with the value that tells them apart."""
        tag = _tag(self.section)
        named = f"{self.paths[0]} ({tag[0]}: {tag[1]})" if tag else self.paths[0]
        return _TITLES.get(self.section, named)


def page() -> str:
    """The whole page as Markdown."""
    found = places()
    lines = [_HEAD, "## Top level", "", "| key | modes | type | default | meaning |", "|---|---|---|---|---|"]
    lines += _top_level(found)
    for place in found.values():
        lines += ["", f"## {place.title}", "", *_about(place)]
        lines += ["", "| key | type | default | meaning |", "|---|---|---|---|"]
        docs = field_docs(place.section)
        for name, info in place.section.model_fields.items():
            lines.append(_row(f"`{name}`", _type(info, found), _default(info), docs[name]))
    return "\n".join(lines) + "\n"


def places() -> dict[type[Section], Place]:
    """The sections below the top level, in the order in which a reader of recipes meets them."""
    found: dict[type[Section], Place] = {}
    for mode in MODES.values():
        for name, info in mode.model_fields.items():
            _walk(info.annotation, name, found)
    return found


def _walk(annotation: Any, path: str, found: dict[type[Section], Place]) -> None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        place = found.setdefault(annotation, Place(annotation))
        if path in place.paths:
            return
        place.paths.append(path)
        bare, chosen = path.removesuffix("[]"), _tag(annotation)
        inside = f"{bare}[{chosen[1]}]" if chosen and bare != path else path
        for name, info in annotation.model_fields.items():
            _walk(info.annotation, f"{inside}.{name}", found)
        return
    kind, args = get_origin(annotation), get_args(annotation)
    inside = args[1:] if kind is dict else args[:1] if kind is Annotated else args
    for part in inside:
        _walk(part, {list: f"{path}[]", dict: f"{path}.NAME"}.get(kind, path), found)


def _top_level(found: Mapping[type[Section], Place]) -> Iterator[str]:
    """One row for each key and each way in which modes define it."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for mode, recipe in MODES.items():
        docs = field_docs(recipe)
        for name, info in recipe.model_fields.items():
            rows.setdefault((name, _type(info, found), _default(info), docs[name]), []).append(mode)
    names = list(dict.fromkeys(name for name, *_ in rows))
    for (name, kind, default, doc), modes in sorted(rows.items(), key=lambda row: names.index(row[0][0])):
        shown = "all" if len(modes) == len(MODES) else ", ".join(modes)
        yield _row(f"`{name}`", shown, kind, default, doc)


def _about(place: Place) -> Iterator[str]:
    yield re.sub(r"docs/(\w+\.md)", r"[\1](\1)", inspect.cleandoc(place.section.__doc__ or ""))
    others = place.paths if place.section in _TITLES else place.paths[1:]
    if len(place.paths) > 1:
        yield from ("", f"The same keys: {', '.join(f'`{path}`' for path in others)}.")


def _row(*cells: str) -> str:
    linked = (re.sub(r"docs/(\w+\.md)", r"[\1](\1)", cell) for cell in cells)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in linked) + " |"


def _type(info: FieldInfo, found: Mapping[type[Section], Place]) -> str:
    """A field's type and bounds; null comes last."""
    several = get_origin(info.annotation) in (Union, types.UnionType)
    parts = get_args(info.annotation) if several else (info.annotation,)
    kinds = [_named(part, found) for part in parts if part is not type(None)]
    return _bounded(" or ".join(kinds), info.metadata) + (" or null" if type(None) in parts else "")


def _named(annotation: Any, found: Mapping[type[Section], Place]) -> str:
    if annotation in _WORDS:
        return _WORDS[annotation]
    if annotation in (Operators, BatchOps):
        return "list of `operator: {arguments}`"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        title = found[annotation].title
        return f"[{title}](#{_anchor(title)})"
    kind, args = get_origin(annotation), get_args(annotation)
    if kind is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if kind is Annotated:
        return _bounded(_named(args[0], found), args[1:])
    if kind in (Union, types.UnionType):
        return " or ".join(_named(part, found) for part in args)
    return {list: "list of {}", dict: "map of {}"}[kind].format(_named(args[-1], found))


def _bounded(kind: str, metadata: Any) -> str:
    """A type and its bounds."""
    bounds = [
        text.format(f"{getattr(bound, name):g}")
        for bound in metadata
        for name, text in _BOUNDS.items()
        if getattr(bound, name, None) is not None
    ]
    return f"{kind} {', '.join(bounds)}" if bounds else kind


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, Section):
        value = value.model_dump(mode="json", exclude_defaults=True)
        return f"`{json.dumps(value)}`" if value else "its defaults"
    return f"`{json.dumps(value)}`"


def _tag(section: type[Section]) -> tuple[str, str] | None:
    """(use, reasoning_gym), for a section that one value of one required key chooses."""
    for name in ("use", "algorithm"):
        info = section.model_fields.get(name)
        if info and info.is_required() and get_origin(info.annotation) is Literal:
            values = get_args(info.annotation)
            if len(values) == 1:
                return name, values[0]
    return None


def _anchor(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept = "".join(sign for sign in title.lower() if sign.isalnum() or sign in " -_")
    return kept.replace(" ", "-")


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is the output
