"""vLLM's own OpenAI server, as an ASGI application over one of our engines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypedDict

from explorers.capture.asgi import App
from explorers.capture.recorder import Metering, Recorder, unmetered
from explorers.engines.vllm_engine import VllmEngine
from rft_data.core.errors import RecipeError


class AppArguments(TypedDict, total=False):
    """Arguments of `openai_app` beside the engine and its name."""

    tool_parser: str | None
    reasoning_parser: str | None
    chat_template_kwargs: Mapping[str, object] | None
    metering: Metering


async def openai_app(
    engine: VllmEngine,
    name: str,
    *,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
    metering: Metering = unmetered,
) -> App:
    """vLLM's server over an engine that was made with `texts`, for the running event loop.

    Args:
        name: what the model is called in requests.
        tool_parser, reasoning_parser: vLLM's names of them (`hermes`, `qwen3`); None: texts stay as sampled.
        chat_template_kwargs: what the template takes where a request does not say it.
        metering: of what is sampled.
    Raises: RecipeError for a parser that vLLM does not have, or cannot import.
    """
    with _levels_kept():  # a package that vLLM's server imports silences all but errors
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app
        from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
        from vllm.utils.argparse_utils import FlexibleArgumentParser

    given = _arguments(tool_parser, reasoning_parser, chat_template_kwargs)
    given += ["--model", str(engine.model_path), "--served-model-name", name]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(given)
    validate_parsed_serve_args(args)
    if reasoning_parser is not None:
        args.structured_outputs_config.reasoning_parser = reasoning_parser
    recorder = Recorder(engine, metering)
    tasks = ("generate",)
    try:
        with _levels_kept():
            app = build_app(args, tasks, recorder.model_config)
            await init_app_state(recorder, app.state, args, tasks)
    except (KeyError, TypeError) as err:
        if isinstance(err, TypeError) and "has not been registered" not in str(err):
            raise
        raise RecipeError(
            f"vLLM cannot load a parser ({err}); `tool_parser` is {tool_parser!r} and `reasoning_parser` "
            f"{reasoning_parser!r}: name parsers of vLLM's, and install what they import."
        ) from err
    made: App = app
    return made


def _arguments(
    tool_parser: str | None, reasoning_parser: str | None, chat_template_kwargs: Mapping[str, object] | None
) -> list[str]:
    """Options of vLLM's server beside the model."""
    given = ["--disable-fastapi-docs", "--disable-log-stats", "--generation-config", "vllm"]
    given += ["--api-key", ""]  # the gate looks at keys; VLLM_API_KEY is of another server
    if tool_parser is not None:
        given += ["--enable-auto-tool-choice", "--tool-call-parser", tool_parser]
    if reasoning_parser is not None:
        given += ["--reasoning-parser", reasoning_parser]
    if chat_template_kwargs:
        given += ["--default-chat-template-kwargs", json.dumps(dict(chat_template_kwargs))]
    return given


@contextmanager
def _levels_kept() -> Iterator[None]:
    """Undo what is done to the levels of the root logger and its handlers."""
    root = logging.getLogger()
    level, handlers = root.level, [(handler, handler.level) for handler in root.handlers]
    try:
        yield
    finally:
        root.setLevel(level)
        for handler, before in handlers:
            handler.setLevel(before)
