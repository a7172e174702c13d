"""Nodes of the recipes' JSON Schema, looked at with the values that a recipe has there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Node = Mapping[str, Any]
_REFERENCE = "^\\$\\{(env|ref):"
_CHOOSERS = ("use", "algorithm")
"""Keys whose value says which alternative of a section is meant."""


class Schema:
    """The recipes' JSON Schema."""

    def __init__(self, schema: Node) -> None:
        self._definitions: Node = schema["$defs"]
        modes: Node = schema["else"]["discriminator"]["mapping"]
        self._modes = {name: target.rpartition("/")[2] for name, target in modes.items()}

    @property
    def modes(self) -> list[str]:
        """The modes of recipes."""
        return sorted(self._modes)

    def recipe(self, mode: str) -> Node:
        """The node of a recipe of a mode."""
        found: Node = self._definitions[self._modes[mode]]
        return found

    def resolved(self, node: Node, value: object) -> Node:
        """The node without references, and the alternative that fits a value; {} where none is told."""
        described = {key: node[key] for key in ("description", "default") if key in node}
        alternatives = [one for one in self._alternatives(node) if not _is_reference(one)]
        real = [one for one in alternatives if one.get("type") != "null"]
        if len(real) == 1:
            return {**real[0], **described}
        if fitting := self._fitting(real, value):
            properties = {**fitting[0]["properties"], **self._choosers(real, fitting[0])}
            return {**fitting[0], **described, "properties": properties}
        types = sorted({str(one["type"]) for one in alternatives if isinstance(one.get("type"), str)})
        return {"anyTypes": types, **described}

    def _alternatives(self, node: Node) -> Iterator[Node]:
        if "$ref" in node:
            yield from self._alternatives(self._definitions[node["$ref"].rpartition("/")[2]])
        elif "anyOf" in node:
            for one in node["anyOf"]:
                yield from self._alternatives(one)
        else:
            yield node

    def _fitting(self, nodes: list[Node], value: object) -> list[Node]:
        """The alternative whose `use` or `algorithm` is the value's; of others, the first that may be."""
        if not isinstance(value, Mapping):
            return []
        for key in _CHOOSERS:
            named = [one for one in nodes if value.get(key) in self._constants(one, key)]
            if named:
                return named[:1]
        return [one for one in nodes if value.keys() <= one.get("properties", {}).keys()][:1]

    def _choosers(self, nodes: list[Node], chosen: Node) -> dict[str, Node]:
        """The keys that choose a section, with all names; where one takes any name, these are examples."""
        found: dict[str, Node] = {}
        for key in _CHOOSERS:
            named = [self._constants(one, key) for one in nodes if key in one.get("properties", {})]
            if key in chosen["properties"] and any(named):
                names = list(dict.fromkeys(name for one in named for name in one))
                said = {"description": chosen["properties"][key].get("description", "")}
                found[key] = {"type": "string", "enum" if all(named) else "examples": names, **said}
        return found

    def _constants(self, node: Node, key: str) -> list[object]:
        found = node.get("properties", {}).get(key)
        if found is None:
            return []
        one = self.resolved(found, None)
        return [one["const"]] if "const" in one else list(one.get("enum", ()))


def _is_reference(node: Node) -> bool:
    return node.get("pattern") == _REFERENCE
