"""`rft serve`: a model for programs that speak to an OpenAI server; what they do is stored."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rft_data.cli.edge import Json, edge, say, show_address
from rft_data.cli.recipe_path import shipped_or_file

if TYPE_CHECKING:
    from rft_data.core.words import TemplatePolicy

TOKEN = "RFT_SERVE_TOKEN"  # noqa: S105 - its name, not the token
_SHORTEST = 16


def serve(
    model: Annotated[
        Path, typer.Argument(help="A model folder, or a recipe whose model and sampling are served.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe: key.path=value ...")
    ] = None,
    folder: Annotated[
        Path, typer.Option("--dir", help="Where rows are stored, in buffer/; continued if it exists.")
    ] = Path("runs/served"),
    name: Annotated[str, typer.Option(help="What programs call the model; default: its folder's name.")] = "",
    host: Annotated[
        str, typer.Option(help="Address to listen on; connections are not encrypted.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Temperature of every request; default 1.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that a request may sample if it sets no limit; default 1024."),
    ] = None,
    deadline_s: Annotated[
        float, typer.Option(min=1.0, help="A trajectory without a request for so long is closed.")
    ] = 3600.0,
    template: Annotated[
        str, typer.Option(help="Where the template rewrites history: fork, keep_thinking or refuse.")
    ] = "fork",
    tool_parser: Annotated[str | None, typer.Option(help="vLLM's parser of tool calls, like hermes.")] = None,
    reasoning_parser: Annotated[
        str | None, typer.Option(help="vLLM's parser of thinking, like qwen3.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve a model to programs until Ctrl-C or SIGTERM; every token they sample is stored, to be trained on.

    The value of RFT_SERVE_TOKEN opens trajectories; without that variable a token is made here and printed.
    """
    with edge():
        import secrets

        from rft_data.core.errors import RecipeError
        from rft_data.run.serve import ServeSettings, recipe_settings, serve_until_stopped

        token = _token(host)
        if not token:
            token = secrets.token_urlsafe(32)
            say(f"export {TOKEN}={token}    # for who opens trajectories", err=True)
        recipe = None if model.is_dir() else shipped_or_file(model)
        if overrides and recipe is None:
            raise RecipeError("changes are of a recipe, and the first argument names a model folder.")
        found = {"model": model} if recipe is None else recipe_settings(recipe, overrides or [], folder)
        settings = ServeSettings(
            folder=folder,
            token=token,
            name=name,
            host=host,
            port=port,
            deadline_s=deadline_s,
            policy=_policy(template),
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            **found,
        )
        told = partial(show_address, as_json=as_json)
        serve_until_stopped(settings.sampled(temperature, max_tokens), told)


def _token(host: str) -> str:
    """The token of the environment.

    Raises: RecipeError without one for a server that others reach, and for a short one.
    """
    import os

    from rft_data.core.errors import RecipeError

    token = os.environ.get(TOKEN, "").strip()
    if not token and host not in ("127.0.0.1", "localhost", "::1"):
        raise RecipeError(
            f"--host {host} is reached by other machines; set {TOKEN} to a token of your own first."
        )
    if token and len(token) < _SHORTEST:
        raise RecipeError(
            f"{TOKEN} has {len(token)} characters, and keys that clients get are made of it; give a random "
            f"one of {_SHORTEST} or more."
        )
    return token


def _policy(word: str) -> TemplatePolicy:
    from rft_data.core.errors import RecipeError
    from rft_data.core.words import TemplatePolicy

    if word not in set(TemplatePolicy):
        raise RecipeError(f"--template is '{word}'; wanted one of: {', '.join(TemplatePolicy)}.")
    return TemplatePolicy(word)
