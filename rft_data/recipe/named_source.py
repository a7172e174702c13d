"""A source that a person names on the command line, as a part of a recipe."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import is_import_path
from rft_data.exchange.formats.functions import function_source
from rft_data.exchange.formats.inputs import Source, hub_parts
from rft_data.exchange.formats.modelscope import MODELSCOPE, modelscope_parts, open_named
from rft_data.recipe.tasksets import Taskset

GENERATED = "reasoning_gym:"
"""How the name of a generator begins."""
_ENVIRONMENT = "verifiers:"
"""How the name of an environment of verifiers begins."""
_GENERATED_SIZE = 200
"""Tasks that are looked at of a generator, which makes as many as are asked for."""
_TASKS = "tasks.lance"
"""Names in the folder of a buffer that the folder of a dataset does not have."""


def stored_source(text: str) -> tuple[Path, str] | None:
    """Buffer and taskset (empty: all) that `BUFFER` or `BUFFER:TASKSET` names; None for other texts."""
    if (Path(text) / _TASKS).is_dir():
        return Path(text), ""
    folder, _, taskset = text.rpartition(":")
    return (Path(folder), taskset) if folder and (Path(folder) / _TASKS).is_dir() else None


def named_source(text: str, *, prompt: str | None, answer: str | None, heldout: float) -> Taskset:
    """The taskset of a file, a folder (`path:split`), a dataset of a hub, a generator or a function.

    Args: text: as `source_section` takes it. prompt, answer: columns or templates; None: recognised.
    Raises: RecipeError for columns that cannot be.
    """
    if text.startswith((GENERATED, _ENVIRONMENT)) and (prompt or answer):
        raise RecipeError(f"{text} makes prompts and answers itself; leave out --prompt and --answer.")
    columns = {} if prompt is None else {"prompt": prompt, "answer": answer}
    given = {"name": "data", "source": source_section(text), "heldout": heldout, **columns}
    if prompt is None and answer is not None:
        given["answer"] = answer
    try:
        return Taskset.model_validate(given)
    except ValidationError as err:
        said = "; ".join(one["msg"].removeprefix("Value error, ") for one in err.errors())
        raise RecipeError(f"{text}: {said}") from err


def named_rows(text: str) -> Source:
    """The source that a person named, opened: a file, a folder, a dataset of a hub, or a function.

    Raises: what `open_named` and `function_source` raise.
    """
    use = str(source_section(text)["use"])
    return function_source(use, {}) if ":" in use else open_named(text)


def source_section(text: str) -> dict[str, object]:
    """The `source` of a taskset that reads what a person named.

    Args: text: a path, `hf://org/name:split@revision`, `modelscope://owner/name:split@revision`,
        `reasoning_gym:NAME`, `verifiers:ENVIRONMENT`, or the import path of a function.
    Raises: RecipeError for a name of a hub's dataset that is none.
    """
    path = Path(text)
    if text.startswith(GENERATED):
        return {"use": "reasoning_gym", "dataset": text.removeprefix(GENERATED), "size": _GENERATED_SIZE}
    if text.startswith(_ENVIRONMENT):
        return {"use": "verifiers", "environment": text.removeprefix(_ENVIRONMENT)}
    if text.startswith(MODELSCOPE):
        parts = modelscope_parts(text)
        named = {"path": parts["repo"], "name": parts["config"]}
        return {"use": "modelscope", **named, "split": parts["split"], "revision": parts["revision"]}
    if text.startswith("hf://"):
        parts = hub_parts(text)
        named = {"path": parts["repo"], "name": parts["config"]}
        return {"use": "huggingface", **named, "split": parts["split"], "revision": parts["revision"]}
    if path.exists():
        is_dataset = path.is_dir() and path.suffix != ".lance"
        return {"use": "huggingface" if is_dataset else "file", "path": text}
    folder, colon, split = text.rpartition(":")
    if colon and Path(folder).is_dir():
        return {"use": "huggingface", "path": folder, "split": split}
    if colon and is_import_path(text):
        return {"use": text}
    return {"use": "file", "path": text}
