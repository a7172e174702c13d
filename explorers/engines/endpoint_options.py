"""The options of the engine `openai`, checked. Imports no library of endpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from ops.endpoint.calls import CallLimits
from rft_data.core.errors import RecipeError
from rft_data.core.lookup import suggest

_LIMITS = {"retries": 5, "timeout_s": 300.0}
"""Defaults that differ from those of judges: an answer may be long, and it comes in one piece."""
_NOT_HERE = "deadline_s"
"""A limit of batches of prompts; a rollout has the deadline of `explorer.limits`."""
_OURS = (
    "model", "messages", "tools", "n", "stream", "max_tokens", "max_completion_tokens", "temperature",
    "stop", "min_tokens", "top_p", "top_k", "min_p",
)  # fmt: skip
"""Fields of a request that the recipe says elsewhere, or that it may not say."""
_LENGTHS = ("max_tokens", "max_completion_tokens")
_PRICES = ("input", "output")
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Options of a served model: its address, how it is asked, and its price."""

    base_url: str
    """Up to and with `/v1`."""
    api_key_env: str | None = None
    """NAME of the environment variable that holds the key; None: no key is sent."""
    request: Mapping[str, object] = field(default_factory=dict)
    """Further fields of every request, for example `reasoning_effort`."""
    length_field: str = "max_tokens"
    """The endpoint's name for the longest completion; newer models of OpenAI: `max_completion_tokens`."""
    price: Mapping[str, float] = field(default_factory=dict)
    """Price of a million tokens, `input` and `output`, in your currency; empty: the cost is not counted."""
    limits: CallLimits = field(default_factory=CallLimits)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The price of one answer, in the currency of `price`."""
        spent = prompt_tokens * self.price.get("input", 0.0) + completion_tokens * self.price.get(
            "output", 0.0
        )
        return spent / _MILLION


def endpoint_options(given: Mapping[str, object]) -> EndpointOptions:
    """The options of a recipe. Raises: RecipeError for one that is unknown, or makes no sense."""
    known = [one.name for one in fields(EndpointOptions)]
    for name in given:
        if name not in known:
            raise _wrong(name, f"no option of the engine 'openai';{suggest(name, known)} Known: {known}")
    options: dict[str, Any] = dict(given)
    _check_url(options.get("base_url"))
    key = options.get("api_key_env")
    if key is not None and not (isinstance(key, str) and key.isidentifier()):
        raise _wrong("api_key_env", "no name of an environment variable; the key itself is never in a recipe")
    if options.get("length_field", _LENGTHS[0]) not in _LENGTHS:
        raise _wrong("length_field", f"{options['length_field']!r}; wanted one of: {', '.join(_LENGTHS)}")
    request = options.get("request", {})
    if not isinstance(request, Mapping):
        raise _wrong("request", f"{request!r}; wanted fields of a request, for example {{seed: 1}}")
    if ours := sorted(set(request) & set(_OURS)):
        raise _wrong(
            "request", f"setting {ours}, which the recipe says elsewhere or may not say; leave them out"
        )
    _check_price(options.get("price", {}))
    return EndpointOptions(**{**options, "limits": _limits(options.get("limits", {}))})


def _check_url(url: object) -> None:
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise _wrong("base_url", f"{url!r}; wanted http://... or https://... up to /v1")
    if parts.username or parts.password or parts.query:
        raise _wrong("base_url", "holding a user, a password or a query; keys go through 'api_key_env'")


def _check_price(price: object) -> None:
    whole = isinstance(price, Mapping) and (not price or set(price) == set(_PRICES))
    numbers = list(price.values()) if isinstance(price, Mapping) else []
    if not whole or not all(
        isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) and one >= 0
        for one in numbers
    ):
        raise _wrong("price", f"{price!r}; wanted 'input' and 'output', numbers per million tokens")


def _limits(given: object) -> CallLimits:
    known = [one.name for one in fields(CallLimits) if one.name != _NOT_HERE]
    if not isinstance(given, Mapping) or (unknown := sorted(set(given) - set(known))):
        found = unknown if isinstance(given, Mapping) else given
        raise _wrong("limits", f"{found!r}; known limits: {', '.join(known)}")
    try:
        return CallLimits(**{**_LIMITS, **given})
    except (ValueError, TypeError) as err:
        raise _wrong("limits", f"not possible: {err}") from err


def _wrong(name: str, what: str) -> RecipeError:
    return RecipeError(f"explorer.engine.options.{name} is {what}.")
