"""Values put into a recipe's text, whose comments, order and other values stay as they are."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML

from rft_data.core.errors import RecipeError
from rft_data.recipe.form.fields import TEXT
from rft_data.recipe.yaml_text import parse_yaml

Mistakes = dict[str, str]
"""Mistake in a field's value, by the field's key."""


def edited(text: str, changes: Mapping[str, tuple[str, str]]) -> tuple[str, Mistakes]:
    """A recipe's text with changed values, and the changes that could not be made.

    Args: changes: by dotted key, kind and value of a field; an empty value removes the key.
    Raises: RecipeError when the text is no YAML map.
    """
    if not isinstance(parse_yaml(text, "recipe"), dict):
        raise RecipeError("recipe:1:1 is not a map of sections; begin with the keys recipe, name and mode.")
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 1 << 20
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree: object = yaml.load(text)
    mistakes: Mistakes = {}
    for key, (kind, value) in changes.items():
        try:
            _put(tree, key.split("."), None if not value.strip() else _value(kind, value))
        except (RecipeError, ValueError, LookupError, TypeError, AttributeError) as err:
            mistakes[key] = str(err) if isinstance(err, RecipeError) else "there is no such place in the text"
    if len(mistakes) == len(changes):
        return text, mistakes
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue(), mistakes


def _value(kind: str, value: str) -> object:
    """The value of a field's text. Raises: RecipeError when it is no YAML."""
    if kind == TEXT:
        return value
    return parse_yaml(value, "this field", keep_lines=True)


def _put(tree: Any, parts: list[str], value: Any) -> None:
    """Set or remove a value.

    Maps on the way are made, and go with their last value; entries of lists must be there.
    """
    node = tree
    above: list[tuple[Any, str]] = []
    for part in parts[:-1]:
        if isinstance(node, list):
            above, node = [], node[int(part)]
            continue
        if node.get(part) is None:
            if value is None:
                return
            node[part] = {}
        above.append((node, part))
        node = node[part]
    last: Any = int(parts[-1]) if isinstance(node, list) else parts[-1]
    if value is not None:
        node[last] = value
    elif isinstance(node, list) or last in node:
        del node[last]
        while above and not node:
            node, part = above.pop()
            del node[part]
