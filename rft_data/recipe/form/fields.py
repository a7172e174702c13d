"""The fields of a recipe by section: name, value, what it means, its range and its choices."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML

from rft_data.recipe.form.schema_node import Node, Schema
from rft_data.recipe.leaves import dotted
from rft_data.recipe.section import Loc

MOST_FIELDS = 600
"""Beyond so many, lists are one field each."""
TEXT, YAML_VALUE, CHOICE = "text", "yaml", "choice"
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "pattern": "of the form {}",
}


@dataclass(slots=True)
class Field:
    """One value of a recipe, which a person may set."""

    key: str
    """Its place, as overrides name it: `stages.0.steps`."""
    kind: str
    """`text`: taken as it is typed; `yaml`: read as YAML; `choice`: one of `choices`."""
    value: str
    """The value as it is in the text; empty: it is not written there."""
    doc: str
    default: str
    """The value where none is written: the default, or that of the extended recipe, as YAML; empty: none."""
    bounds: str
    """The bounds of the value, in words."""
    choices: list[str]
    is_required: bool
    rows: int
    """Lines of its value."""


@dataclass(slots=True)
class Part:
    """The fields of one key of a recipe."""

    key: str
    doc: str
    fields: list[Field] = field(default_factory=list)


def parts(schema: Schema, tree: Mapping[str, Any], below: Mapping[str, Any] | None = None) -> list[Part]:
    """The parts of a recipe, in the order of the schema; of one without a mode, the mode alone.

    Args: below: the recipes that it extends, merged.
    """
    below = below or {}
    mode = tree.get("mode", below.get("mode"))
    if mode not in schema.modes:
        chosen = Field("mode", CHOICE, "", "What the recipe does.", "", "", schema.modes, True, 1)
        return [Part("mode", "", [chosen])]
    return _Walk(schema).parts(schema.recipe(str(mode)), tree, below)


_Values = tuple[Any, Any]
"""The value of the text at a place, and that of the recipes that it extends; None: nothing."""


class _Walk:
    """Fields in the order of the schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._count = 0

    def parts(self, recipe: Node, tree: Mapping[str, Any], below: Mapping[str, Any]) -> list[Part]:
        """The parts of a recipe of some mode."""
        first = Part("recipe", "What the run is called and what it does.")
        found = [first]
        for key, node in recipe["properties"].items():
            needed = key in recipe.get("required", ()) and key not in below
            fields = list(self._fields(node, (tree.get(key), below.get(key)), (key,), needed))
            if len(fields) == 1 and fields[0].key == key and fields[0].rows == 1:
                first.fields += fields
            else:
                found.append(Part(key, str(node.get("description", "")), fields))
        return found

    def _fields(self, node: Node, values: _Values, loc: Loc, is_required: bool) -> Iterator[Field]:
        value, below = values
        known = self._schema.resolved(node, below if value is None else value)
        properties = known.get("properties")
        if properties and (value is None or isinstance(value, Mapping)):
            own: Mapping[str, Any] = value or {}
            inherited: Mapping[str, Any] = below if isinstance(below, Mapping) else {}
            for key, one in properties.items():
                needed = is_required and key in known.get("required", ())
                yield from self._fields(one, (own.get(key), inherited.get(key)), (*loc, key), needed)
        elif self._is_list_of_sections(known, value):
            for place, entry in enumerate(value):
                yield from self._fields(known["items"], (entry, None), (*loc, place), True)
        else:
            self._count += 1
            yield _field(known, values, loc, is_required)

    def _is_list_of_sections(self, node: Node, value: Any) -> bool:
        if node.get("type") != "array" or not isinstance(value, list) or not value:
            return False
        if self._count + 20 * len(value) > MOST_FIELDS:
            return False
        return all("properties" in self._schema.resolved(node["items"], entry) for entry in value)


def _field(node: Node, values: _Values, loc: Loc, is_required: bool) -> Field:
    value, below = values
    default = node.get("default") if below is None else below
    kind, choices = _kind(node)
    text = "" if value is None else _text(value, kind)
    if kind == CHOICE and text and text not in choices:
        choices = [*choices, text]  # a reference, or what is wrong
    return Field(
        key=dotted(loc),
        kind=kind,
        value=text,
        doc=str(node.get("description", "")),
        default="" if default is None else json.dumps(default, ensure_ascii=False),
        bounds=_bounds(node),
        choices=choices,
        is_required=is_required,
        rows=text.count("\n") + 1 if text else 3 if node.get("type") == "array" else 1,
    )


def _bounds(node: Node) -> str:
    said = [words.format(node[key]) for key, words in _BOUNDS.items() if key in node]
    if "examples" in node:
        said.append(f"for example {', '.join(map(str, node['examples']))}")
    return ", ".join(said)


def _kind(node: Node) -> tuple[str, list[str]]:
    if "const" in node:
        return CHOICE, [str(node["const"])]
    if "enum" in node:
        return CHOICE, [str(one) for one in node["enum"]]
    if node.get("type") == "boolean":
        return CHOICE, ["true", "false"]
    return (TEXT if node.get("type") == "string" else YAML_VALUE), []


def _text(value: Any, kind: str) -> str:
    """A value as its field has it."""
    if isinstance(value, str):
        return value if kind != YAML_VALUE or "\n" in value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    out = io.StringIO()
    writer = YAML(typ="rt", pure=True)
    writer.width = 1 << 20
    writer.dump(value, out)
    return out.getvalue().strip().removesuffix("...").strip()
