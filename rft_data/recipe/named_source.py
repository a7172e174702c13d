"""A source that a person names on the command line, as a part of a recipe."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import is_import_path
from rft_data.exchange.formats.inputs import hub_parts
from rft_data.recipe.tasksets import Taskset


def named_source(text: str, *, prompt: str | None, answer: str | None, heldout: float) -> Taskset:
    """The taskset of a file, a folder (`path:split`), `hf://org/name:split@revision` or a function.

    Args: prompt, answer: columns or templates; None: recognised.
    Raises: RecipeError for columns that cannot be.
    """
    columns = {} if prompt is None else {"prompt": prompt, "answer": answer}
    given = {"name": "data", "source": source_section(text), "heldout": heldout, **columns}
    if prompt is None and answer is not None:
        given["answer"] = answer
    try:
        return Taskset.model_validate(given)
    except ValidationError as err:
        said = "; ".join(one["msg"].removeprefix("Value error, ") for one in err.errors())
        raise RecipeError(f"{text}: {said}") from err


def source_section(text: str) -> dict[str, object]:
    """The `source` of a taskset that reads what a person named."""
    path = Path(text)
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
