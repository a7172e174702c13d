"""Whether a request has the form that vLLM's server takes, found out without looking past the first error.

vLLM's server itself collects every error of every item: a few kilobytes that are wrong make it gibibytes of
errors, in the event loop that all clients share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails, SchemaValidator, ValidationError

from explorers.capture.refused import Refused
from rft_data.core.text import shown

_LISTS = ("list", "set", "frozenset", "tuple")
_TOLD = ("role", "type")
"""Fields that say which of several forms an object has."""


class Forms:
    """vLLM's own models of the requests, whose lists end at their first wrong item."""

    def __init__(self) -> None:
        from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
        from vllm.exceptions import VLLMError

        models: Mapping[str, Any] = {
            "/v1/chat/completions": ChatCompletionRequest,
            "/v1/completions": CompletionRequest,
            "/v1/responses": ResponsesRequest,
            "/v1/messages": AnthropicMessagesRequest,
        }
        self._of_route = {
            route: SchemaValidator(_hasty(model.__pydantic_core_schema__)) for route, model in models.items()
        }
        self._answered = (VLLMError, TypeError, ValueError, LookupError, AttributeError)
        """Errors of vLLM's own checks: its server answers that, at once."""

    def check(self, route: str, raw: bytes) -> None:
        """Raises: Refused for a body that the route does not take, by the first place that is wrong."""
        try:
            self._of_route[route].validate_json(raw)
        except ValidationError as err:
            wrong = _likeliest(err.errors(include_url=False, include_context=False, include_input=False))
            place, inside = _place(wrong["loc"])
            text = shown(f"{inside}: {wrong['msg']}" if inside else wrong["msg"])
            raise Refused(place, f"'{place}' has not the form that this route takes ({text}).") from err
        except self._answered:
            return


def _hasty(schema: Any) -> Any:
    """A copy of a schema of pydantic's whose lists end at their first error."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_hasty, schema))
    if not isinstance(schema, dict):
        return schema
    made = {name: inside if name == "metadata" else _hasty(inside) for name, inside in schema.items()}
    if schema.get("type") in _LISTS:
        made["fail_fast"] = True
    if schema.get("type") == "model":
        made["cls"] = _stand_in(schema["cls"])
    return made


def _stand_in(kind: type) -> type:
    """A class in place of a model's, which has a validator that pydantic takes whatever its schema says."""
    looks = {"__instancecheck__": lambda _, one: isinstance(one, kind)}
    made: type = type.__new__(type("StandIn", (type(kind),), looks), kind.__name__, (kind,), {})
    return made


def _likeliest(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """The first error of the form that comes nearest: with the fewest, of those with its role and type."""
    of_items = [one for one in errors if any(isinstance(step, int) for step in one["loc"])] or errors
    forms: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for one in of_items:
        start = next((n for n, step in enumerate(one["loc"]) if isinstance(step, int)), 0)
        forms.setdefault(one["loc"][: start + 2], []).append(one)
    fitting = [one for one in forms.values() if not any(map(_is_of_another, one))]
    return min(fitting or forms.values(), key=len)[0]


def _is_of_another(error: ErrorDetails) -> bool:
    return error["type"] == "literal_error" and error["loc"][-1] in _TOLD


def _place(loc: Sequence[int | str]) -> tuple[str, str]:
    """The field or its item, and what is wrong inside it; names of pydantic's forms are left out."""
    if not loc or isinstance(loc[0], int):  # of the whole, or of a list that vLLM has looked at by itself
        return "body", ".".join(map(str, loc))
    item = next((n for n, step in enumerate(loc) if isinstance(step, int)), 0)
    place = str(loc[0]) + (f"[{loc[item]}]" if item else "")
    steps = [str(step) for step in loc[item + 1 :]]
    return place, ".".join(one for one in steps if one == one.lower() and one.replace("_", "").isalnum())
