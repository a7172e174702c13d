"""`rft debug`: one thing of a recipe, once, with everything shown."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rft_data.cli.edge import Json, edge, show
from rft_data.cli.recipe_path import Overrides, RecipePath

Which = Annotated[
    str | None, typer.Option("--task", help="A task's id, or its place from 0; else the first task.")
]

debug_app = typer.Typer(help="One thing, once, with everything shown.", no_args_is_help=True)


@debug_app.command()
def template(
    model: Annotated[
        str, typer.Argument(help="A Hugging Face folder, or a hub id where the network allows.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the template: enable_thinking=false ...")
    ] = None,
    as_json: Json = False,
) -> None:
    """Whether conversations of many turns stay one row with a model's chat template, and where they break."""
    with edge():
        from explorers.conversations.certificate import certify
        from explorers.conversations.template import ChatTemplate
        from rft_data.core.lookup import need

        transformers = need("transformers", "train", "a chat template")
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        given = dict(_argument(text) for text in arguments or [])
        found = certify(ChatTemplate(tokenizer, given))
        value = {"prefix_preserving": found.prefix_preserving, **asdict(found)}
        show(value, "\n".join(found.lines), as_json=as_json)


@debug_app.command()
def task(recipe: RecipePath, overrides: Overrides = None, which: Which = None, as_json: Json = False) -> None:
    """A task as the model will see it: messages, the template's text, ids; and its answer and metadata."""
    with edge():
        from rft_data.cli.debug_text import task_text
        from rft_data.recipe.load import load_recipe
        from rft_data.run.build import prepare_process
        from rft_data.run.debug.chosen import chosen_task, explored, rendered

        prepare_process()
        loaded = explored(load_recipe(recipe, overrides or []))
        found = chosen_task(loaded, which)
        prompt = rendered(loaded, found)
        value = {"task_id": found.task_id, **asdict(found), "prompt": asdict(prompt)}
        show(value, task_text(found, prompt), as_json=as_json)


@debug_app.command()
def reward(
    recipe: RecipePath,
    overrides: Overrides = None,
    completion: Annotated[str, typer.Option(help="The answer to score.")] = "",
    which: Which = None,
    as_json: Json = False,
) -> None:
    """The recipe's reward for one completion of one task, with every part. No model is loaded."""
    with edge():
        from rft_data.cli.debug_text import reward_text
        from rft_data.recipe.load import load_recipe
        from rft_data.run.debug.chosen import chosen_task, explored
        from rft_data.run.debug.rewarding import rewarded

        loaded = explored(load_recipe(recipe, overrides or []))
        found = chosen_task(loaded, which)
        scored = rewarded(loaded, found, completion)
        show({"task_id": found.task_id, **scored}, reward_text(found, scored), as_json=as_json)


@debug_app.command()
def op(
    name: Annotated[str, typer.Argument(help="An operator's name (rft ops list), or its import path.")],
    buffer: Annotated[Path, typer.Option("--buffer", help="A buffer with rollouts.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the operator: min_std=0.1 ...")
    ] = None,
    group: Annotated[str | None, typer.Option(help="A group id; else the first group.")] = None,
    as_json: Json = False,
) -> None:
    """What an operator says about each row of a stored group; writes nothing."""
    with edge():
        from rft_data.buffer import Buffer
        from rft_data.cli.debug_text import verdict_text
        from rft_data.run.build import prepare_process
        from rft_data.run.debug.judging import judged

        prepare_process()
        given = dict(_argument(text) for text in arguments or [])
        with Buffer(buffer, read_only=True) as opened:
            found = judged(opened, name, given, group)
        show(found, "\n\n".join(map(verdict_text, found)), as_json=as_json)


@debug_app.command()
def engine(
    recipe: RecipePath,
    overrides: Overrides = None,
    which: Which = None,
    rollouts: Annotated[int, typer.Option(min=1, help="How many rollouts of the task.")] = 1,
    as_json: Json = False,
) -> None:
    """Play a task with the recipe's engine, workflow, rewards and operators: every token, every part."""
    with edge():
        from rft_data.cli.debug_text import played_text
        from rft_data.recipe.load import load_recipe
        from rft_data.run.debug.chosen import chosen_task, explored
        from rft_data.run.debug.playing import played

        loaded = explored(load_recipe(recipe, overrides or []))
        found = played(loaded, chosen_task(loaded, which), rollouts)
        show([asdict(row) for row in found], "\n\n".join(map(played_text, found)), as_json=as_json)


def _argument(text: str) -> tuple[str, object]:
    """`name=value`, the value as YAML. Raises: RecipeError."""
    from rft_data.core.errors import RecipeError
    from rft_data.recipe.yaml_text import parse_yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise RecipeError(f"'{text}' is no argument; wanted name=value.")
    return name, parse_yaml(value, f"the value of '{name}'")
