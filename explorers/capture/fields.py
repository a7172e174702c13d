"""Fields of a request that are honoured exactly; every other one is refused by its name.

vLLM ignores what it does not know. A field that changes the distribution that is sampled from (`top_p`,
penalties, `logit_bias`) is refused too: the logprobs in the rows would not be the trainer's.
"""

from __future__ import annotations

from collections.abc import Mapping

from explorers.capture.nested import ANY as _ANY
from explorers.capture.nested import inner_fields
from explorers.capture.refused import Refused
from rft_data.core.engine import Sampling
from rft_data.core.text import shown

_OFF: tuple[object, ...] = (0, 0.0, False, "", [], {})
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "top_p": (1, 1.0),
    "top_k": (0, -1),
    "min_p": _OFF,
    "frequency_penalty": _OFF,
    "presence_penalty": _OFF,
    "repetition_penalty": (1, 1.0),
    "logit_bias": _OFF,
    "user": _ANY,
    "metadata": _ANY,
    "store": (False,),
    "service_tier": ("auto", "default"),
    "stream": _ANY,
    "model": _ANY,
    "temperature": _ANY,
    "skip_special_tokens": (True,),
    "request_id": _ANY,
    "safety_identifier": _ANY,
    "prompt_cache_key": _ANY,
}
"""Fields of several routes, with the values that change nothing; _ANY: whatever is given."""
_SAMPLED: Mapping[str, tuple[object, ...]] = {
    "n": _ANY,
    "stop": _ANY,
    "stop_token_ids": _ANY,
    "include_stop_str_in_output": _ANY,
    "max_tokens": _ANY,
    "logprobs": _ANY,
    "response_format": _ANY,
    "structured_outputs": _ANY,
    "stream_options": _ANY,
    "return_token_ids": _ANY,
    "return_tokens_as_token_ids": _ANY,
    "best_of": (1,),
    "echo": (False,),
    "suffix": _OFF,
}
_ROUTES: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "/v1/chat/completions": {
        **NEUTRAL,
        **_SAMPLED,
        "messages": _ANY,
        "max_completion_tokens": _ANY,
        "top_logprobs": _ANY,
        "tools": _ANY,
        "tool_choice": _ANY,
        "parallel_tool_calls": _ANY,
        "chat_template_kwargs": _ANY,
        "modalities": (["text"],),
    },
    "/v1/completions": {**NEUTRAL, **_SAMPLED, "prompt": _ANY},
    "/v1/responses": {
        **NEUTRAL,
        "store": (False, True),  # it is not kept either way: `previous_response_id` is refused
        "input": _ANY,
        "instructions": _ANY,
        "max_output_tokens": _ANY,
        "tools": _ANY,
        "tool_choice": _ANY,
        "parallel_tool_calls": (True,),  # vLLM echoes it, and cuts no calls off here
        "text": _ANY,
        "top_logprobs": (0,),  # only `include` would show them
        "include": _OFF,
        "truncation": ("disabled",),
        "background": (False,),
    },
    "/v1/messages": {
        **NEUTRAL,
        "messages": _ANY,
        "system": _ANY,
        "max_tokens": _ANY,
        "stop_sequences": _ANY,
        "tools": _ANY,
        "tool_choice": _ANY,
        "thinking": ({"type": "disabled"},),
    },
}
ROUTES = frozenset(_ROUTES)
"""Paths of vLLM's server that sample; no other one can be posted to."""
MOST_CHOICES = 128
"""Most choices, and most prompts, of one request."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_RENDERERS = (
    "add_generation_prompt", "continue_final_message", "tokenize", "padding", "truncation", "max_length",
    "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
)  # fmt: skip
"""Of `chat_template_kwargs`: arguments of what renders a template, which vLLM says itself."""
_GRAMMARS = ("response_format", "structured_outputs")
_PICTURES = ("image_url", "input_image", "image", "input_audio", "audio", "video_url", "file", "input_file")


def check_fields(route: str, body: Mapping[str, object], sampling: Sampling) -> None:
    """Raises: Refused for the first field that would be ignored, or would change the distribution."""
    known = _ROUTES[route]
    for name, value in body.items():
        if value is None:
            continue
        check_value(name, value, known.get(name))
    for place, value, allowed in inner_fields(route, body):
        check_value(place, value, allowed)
    told = body.get("chat_template_kwargs")
    for name, value in told.items() if isinstance(told, Mapping) else ():
        if name in _RENDERERS:
            check_value(f"chat_template_kwargs.{name}", value, None)
    given = body.get("temperature")
    if given is not None and given != sampling.temperature:
        raise Refused(
            "temperature",
            f"'temperature' is {shown(repr(given))}; this server samples at {sampling.temperature:g}, at "
            "which the rows are trained: leave it out, or start the server with the one you want.",
        )
    check_choices(body)
    _check_parts(body)


def check_choices(body: Mapping[str, object]) -> None:
    """Raises: Refused for more choices than one request may have, and for fewer tokens than one."""
    for name in _LIMITS:
        limit = body.get(name)
        if isinstance(limit, int | float) and limit < 1:
            raise Refused(name, f"'{name}' is {shown(repr(limit))}; wanted a whole number, 1 or more.")
    n = body.get("n")
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_CHOICES):
        raise Refused("n", f"'n' is {shown(repr(n))}; wanted a whole number from 1 to {MOST_CHOICES}.")
    prompts = body.get("prompt")
    if isinstance(prompts, list) and len(prompts) > MOST_CHOICES and not isinstance(prompts[0], int):
        raise Refused(
            "prompt", f"'prompt' has {len(prompts)} prompts; at most {MOST_CHOICES} may be in a request."
        )


def says_limit(body: Mapping[str, object]) -> bool:
    """Whether a request says how many tokens may be sampled."""
    return any(body.get(name) is not None for name in _LIMITS)


def grammar_field(body: Mapping[str, object]) -> str | None:
    """The field by which a request constrains what may be sampled; None: nothing does."""
    choice, text = body.get("tool_choice"), body.get("text")
    choice = choice.get("type") if isinstance(choice, Mapping) else choice  # Anthropic's form
    asked = {name: body.get(name) for name in _GRAMMARS}
    asked["text.format"] = text.get("format") if isinstance(text, Mapping) else None
    for name, value in asked.items():
        if value not in (None, {"type": "text"}):
            return name
    if choice not in (None, "none", "auto"):
        return "tool_choice"
    return "tools.strict" if asks_for_strict_calls(body) else None


def asks_for_strict_calls(body: Mapping[str, object]) -> bool:
    """Whether calls of some tool are to follow its schema, which some parsers have no grammar for."""
    return body.get("tool_choice") != "none" and any(map(_is_strict, _listed(body.get("tools"))))


def _is_strict(tool: object) -> bool:
    inside = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return isinstance(inside, Mapping) and inside.get("strict") is True


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def check_value(name: str, value: object, allowed: tuple[object, ...] | None) -> None:
    """Raises: Refused for a value that is not `allowed`; None: the field is not known."""
    if allowed is None:
        raise Refused(name, f"'{shown(name)}' is not supported here, so it would be ignored; leave it out.")
    if allowed and not any(type(value) is type(one) and value == one for one in allowed):
        wanted = " or ".join(sorted({repr(one) for one in allowed})) if allowed is not _OFF else "nothing"
        raise Refused(
            name,
            f"'{shown(name)}' is {shown(repr(value))}, which cannot be honoured: the tokens would not be "
            "sampled from the distribution that is trained, or it would be ignored. Leave it out (or say "
            f"{wanted}).",
        )


def _check_parts(body: Mapping[str, object]) -> None:
    """Raises: Refused for content that is no text."""
    for name in ("messages", "input"):
        for place, message in enumerate(_listed(body.get(name))):
            content = message.get("content") if isinstance(message, Mapping) else None
            for part in content if isinstance(content, list) else ():
                kind = part.get("type") if isinstance(part, Mapping) else None
                if kind in _PICTURES:
                    raise Refused(
                        f"{name}[{place}].content",
                        f"'{name}[{place}].content' has a part of type '{kind}'; only text can be recorded.",
                    )
