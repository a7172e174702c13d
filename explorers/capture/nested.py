"""Fields inside the objects of a request; vLLM ignores those that it does not know, so they are refused.

Not looked at: what a client chooses freely (messages, JSON schemas, `chat_template_kwargs`, `metadata`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

ANY: tuple[object, ...] = ()
"""Whatever is given."""
Fields: TypeAlias = Mapping[str, tuple[object, ...]]
"""Names with the values that are honoured, or that change nothing; ANY: all."""

_FUNCTION: Fields = {
    "name": ANY,
    "description": ANY,
    "parameters": ANY,
    "strict": ANY,
    "defer_loading": (False,),
}
_SCHEMA: Fields = {"name": ANY, "description": ANY, "schema": ANY, "strict": ANY}
_ONE_FORMAT = ("text", "json_object", "json_schema", "structural_tag")
_SAMPLED: Mapping[str, Fields] = {
    "stream_options": {"include_usage": ANY, "continuous_usage_stats": ANY, "include_obfuscation": (False,)},
    "response_format": {
        "type": _ONE_FORMAT, "json_schema": ANY, "format": ANY, "structures": ANY, "triggers": ANY,
    },
    "response_format.json_schema": _SCHEMA,
    "response_format.structures[]": {"begin": ANY, "schema": ANY, "end": ANY},
    "structured_outputs": {
        "json": ANY, "regex": ANY, "choice": ANY, "grammar": ANY, "json_object": ANY, "structural_tag": ANY,
        # vLLM has these of its engine, whatever a request says
        "disable_any_whitespace": (False,), "disable_additional_properties": (False,),
    },
}  # fmt: skip
_ROUTES: Mapping[str, Mapping[str, Fields]] = {
    "/v1/chat/completions": {
        **_SAMPLED,
        "tools[]": {"type": ("function",), "function": ANY, "defer_loading": (False,)},
        "tools[].function": _FUNCTION,
        "tool_choice": {"type": ("function",), "function": ANY},
        "tool_choice.function": {"name": ANY},
    },
    "/v1/completions": _SAMPLED,
    "/v1/responses": {
        "tools[]": {"type": ("function",), **_FUNCTION},
        "tool_choice": {"type": ("function",), "name": ANY},
        "text": {"format": ANY, "verbosity": ("medium",)},
        "text.format": {"type": _ONE_FORMAT[:3], **_SCHEMA},
    },
    "/v1/messages": {
        "tools[]": {
            "type": ("custom",), "name": ANY, "description": ANY, "input_schema": ANY, "strict": ANY,
            "defer_loading": (False,), "cache_control": ANY,
        },
        "tool_choice": {
            "type": ("auto", "any", "tool", "none"), "name": ANY, "disable_parallel_tool_use": ANY,
        },
    },
}  # fmt: skip
"""The objects of each route whose fields are known; `[]`: each element of a list."""
_SCHEMA_FORMAT = ("json_schema", "schema")
"""Parts of a format that count with the type `json_schema` alone."""


def inner_fields(
    route: str, body: Mapping[str, object]
) -> Iterator[tuple[str, object, tuple[object, ...] | None]]:
    """Each field inside an object: its place, its value, and what it may be; None: it is not known."""
    for path, known in _ROUTES[route].items():
        for place, inside in _objects(body, path.split(".")):
            for name, value in inside.items():
                if value is not None:
                    yield f"{place}.{name}", value, _allowed(known, name, inside)


def _allowed(known: Fields, name: str, inside: Mapping[str, object]) -> tuple[object, ...] | None:
    """None also for a schema of a format that has none."""
    if name in _SCHEMA_FORMAT and inside.get("type") in ("text", "json_object"):
        return None
    return known.get(name)


def _objects(value: object, path: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects at a path, with where each is. What has another form is vLLM's to refuse."""
    if not isinstance(value, Mapping):
        return
    step, *rest = path
    name = step.removesuffix("[]")
    found = value.get(name)
    elements: list[tuple[str, object]] = [(name, found)]
    if step != name:
        elements = [(f"{name}[{n}]", one) for n, one in enumerate(found if isinstance(found, list) else ())]
    for place, one in elements:
        if not rest and isinstance(one, Mapping):
            yield place, one
        elif rest:
            for deeper, inside in _objects(one, rest):
                yield f"{place}.{deeper}", inside
