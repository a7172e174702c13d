"""`rft debug`: one thing of a recipe, with everything shown; with `--more` then further ones."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rft_data.cli.debug_more import More, conversation, each
from rft_data.cli.debug_more import completion as completion_of
from rft_data.cli.edge import Json, edge, show
from rft_data.cli.recipe_path import Overrides, RecipePath

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Which = Annotated[
    str | None, typer.Option("--task", help="A task's id, or its place from 0; else the first task.")
]

debug_app = typer.Typer(help="One thing, with everything shown.", no_args_is_help=True)


@debug_app.command()
def template(
    model: Annotated[
        str, typer.Argument(help="A Hugging Face folder, or a hub id where the network allows.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the template: enable_thinking=false ...")
    ] = None,
    more: More = False,
    as_json: Json = False,
) -> None:
    """Whether conversations of many turns stay one row with a model's chat template, and where they break.

    A line of stdin is a JSON list of messages, which is shown as the template writes it.
    """
    with edge():
        from explorers.conversations.certificate import certify
        from explorers.conversations.template import ChatTemplate
        from rft_data.cli.debug_text import rendered_text

        used = ChatTemplate(_tokenizer(model), dict(_argument(text) for text in arguments or []))

        def answer(line: str | None) -> None:
            if line is None:
                found = certify(used)
                value = {"prefix_preserving": found.prefix_preserving, **asdict(found)}
                show(value, "\n".join(found.lines), as_json=as_json)
                return
            text = used.text(*conversation(line), opened=True)
            ids = used.ids(text)
            show({"text": text, "ids": ids}, rendered_text(text, ids), as_json=as_json)

        each(None, answer, more=more, wanted="messages as JSON")


def _tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Raises: MissingFileError, also for one that cannot be read; MissingExtraError."""
    from rft_data.core.errors import MissingFileError
    from rft_data.core.lookup import need
    from rft_data.core.text import shown

    transformers = need("transformers", "train", "a chat template")
    try:
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as err:  # a path, a hub id, a damaged file
        raise MissingFileError(
            f"'{model}' gives no tokenizer ({shown(str(err))}); name the folder of a model with its "
            "tokenizer, or a hub id that can be reached from here."
        ) from err
    return tokenizer


@debug_app.command()
def task(
    recipe: RecipePath,
    overrides: Overrides = None,
    which: Which = None,
    more: More = False,
    as_json: Json = False,
) -> None:
    """A task as the model will see it: messages, the template's text, ids; and its answer and metadata.

    Its workflow is played up to the first request, so that what its world shows and offers is there.

    A line of stdin is the id or the place of another task.
    """
    with edge():
        from rft_data.cli.debug_text import task_text
        from rft_data.recipe.load import load_recipe
        from rft_data.run.build import prepare_process
        from rft_data.run.debug.chosen import chosen_from, explored, recipe_tasks, recipe_tokenizer
        from rft_data.run.debug.first_prompts import FirstPrompts
        from rft_data.run.image_checks import check_recipe_images

        prepare_process()
        loaded = explored(load_recipe(recipe, overrides or []))
        tasks = recipe_tasks(loaded)
        chosen_from(tasks, which)  # said before a tokenizer is loaded
        tokenizer = recipe_tokenizer(loaded)

        with closing(FirstPrompts(loaded, tokenizer)) as prompts:

            def answer(line: str | None) -> None:
                found = chosen_from(tasks, line)
                check_recipe_images([found], loaded)
                prompt = prompts.prompt(found)
                value = {"task_id": found.task_id, **asdict(found), "prompt": asdict(prompt)}
                show(value, task_text(found, prompt), as_json=as_json)

            each(which, answer, more=more, wanted="a task's id or place")


@debug_app.command()
def reward(
    recipe: RecipePath,
    overrides: Overrides = None,
    completion: Annotated[str, typer.Option(help="The answer to score.")] = "",
    which: Which = None,
    more: More = False,
    as_json: Json = False,
) -> None:
    """The recipe's reward for one completion of one task, with every part. No model is loaded.

    A line of stdin is another completion, as text or as a JSON string. When the file of a reward
    (./file.py:name) changes in between, it is read again.
    """
    with edge():
        from rft_data.cli.debug_text import reward_text
        from rft_data.recipe.load import load_recipe
        from rft_data.run.debug.chosen import chosen_task, explored
        from rft_data.run.debug.rewarding import KeptRewards, marker_hint

        loaded = explored(load_recipe(recipe, overrides or []))
        found = chosen_task(loaded, which)
        with KeptRewards(loaded) as rewards:

            def answer(line: str | None) -> None:
                text = completion if line is None else completion_of(line)
                scored = rewards.score(found, text)
                hint = marker_hint(loaded.explorer.reward, found, text, scored["reward_parts"] or {})
                value = {"task_id": found.task_id, **scored, "hint": hint}
                show(value, reward_text(found, scored, hint), as_json=as_json)

            each(None, answer, more=more, wanted="a completion")


@debug_app.command()
def op(
    name: Annotated[str, typer.Argument(help="An operator's name (rft ops list), or its import path.")],
    buffer: Annotated[Path, typer.Option("--buffer", help="A buffer with rollouts.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the operator: min_std=0.1 ...")
    ] = None,
    group: Annotated[str | None, typer.Option(help="A group id; else the first group.")] = None,
    more: More = False,
    as_json: Json = False,
) -> None:
    """What an operator says about each row of a stored group; writes nothing.

    A line of stdin is the id of another group.
    """
    with edge():
        from rft_data.buffer import Buffer
        from rft_data.cli.debug_text import verdict_text
        from rft_data.run.build import prepare_process
        from rft_data.run.debug.judging import judging

        prepare_process()
        given = dict(_argument(text) for text in arguments or [])
        with Buffer(buffer, read_only=True) as opened, judging(opened, name, given) as judge:

            def answer(line: str | None) -> None:
                found = judge(line)
                show(found, "\n\n".join(map(verdict_text, found)), as_json=as_json)

            each(group, answer, more=more, wanted="a group id")


@debug_app.command()
def engine(
    recipe: RecipePath,
    overrides: Overrides = None,
    which: Which = None,
    rollouts: Annotated[int, typer.Option(min=1, help="How many rollouts of the task.")] = 1,
    more: More = False,
    as_json: Json = False,
) -> None:
    """Play a task with the recipe's engine, workflow, rewards and operators: every token, every part.

    A line of stdin is the id or the place of another task of the same taskset.
    """
    with edge():
        from rft_data.cli.debug_text import played_text
        from rft_data.recipe.load import load_recipe
        from rft_data.run.debug.chosen import chosen_from, explored, recipe_tasks
        from rft_data.run.debug.playing import playing

        loaded = explored(load_recipe(recipe, overrides or []))
        tasks = recipe_tasks(loaded)
        with playing(loaded, chosen_from(tasks, which), rollouts) as play:

            def answer(line: str | None) -> None:
                rows = play(chosen_from(tasks, line))
                show([asdict(row) for row in rows], "\n\n".join(map(played_text, rows)), as_json=as_json)

            each(which, answer, more=more, wanted="a task's id or place")


def _argument(text: str) -> tuple[str, object]:
    """`name=value`, the value as YAML. Raises: RecipeError."""
    from rft_data.core.errors import RecipeError
    from rft_data.recipe.yaml_text import parse_yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise RecipeError(f"'{text}' is no argument; wanted name=value.")
    return name, parse_yaml(value, f"the value of '{name}'")
