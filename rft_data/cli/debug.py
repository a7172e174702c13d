"""`rft debug`: questions about a model, asked before a run."""

from __future__ import annotations

from typing import Annotated

import typer

from rft_data.cli.edge import edge, say

debug_app = typer.Typer(help="Look at what a run would meet.", no_args_is_help=True)


@debug_app.callback()
def _debug() -> None:
    """With a callback typer keeps the name of a single command."""


@debug_app.command()
def template(
    model: Annotated[
        str, typer.Argument(help="A Hugging Face folder, or a hub id where the network allows.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the template: enable_thinking=false ...")
    ] = None,
) -> None:
    """Whether conversations of many turns stay one row with a model's chat template, and where they break."""
    with edge():
        from explorers.conversations.certificate import certify
        from explorers.conversations.template import ChatTemplate
        from rft_data.core.lookup import need

        transformers = need("transformers", "train", "a chat template")
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        given = dict(_argument(text) for text in arguments or [])
        say("\n".join(certify(ChatTemplate(tokenizer, given)).lines))


def _argument(text: str) -> tuple[str, object]:
    """`name=value`, the value as YAML. Raises: RecipeError."""
    from rft_data.core.errors import RecipeError
    from rft_data.recipe.yaml_text import parse_yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise RecipeError(f"'{text}' is no argument of a template; wanted name=value.")
    return name, parse_yaml(value, f"the value of '{name}'")
