"""An environment of the package `verifiers`: how it is loaded, and its datasets as tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import load, need
from rft_data.core.rows import Task
from rft_data.tasks.columns import answer_text, prompt_messages
from rft_data.tasks.sources import make_task

if TYPE_CHECKING:
    from datasets import Dataset
    from verifiers import Environment

MAKER = "load_environment"
"""The function with which a module of an environment makes it."""
_MODULE = "verifiers.envs.environment"
"""Module in which verifiers 0.1 has its environments; later versions have others."""


def verifiers_environment(name: str, args: Mapping[str, object]) -> Environment:
    """The environment that `name` leads to: the id of an installed one, a file, or an import path.

    Raises: MissingExtraError, UnknownComponentError; RecipeError for what makes no environment.
    """
    verifiers = need("verifiers", "verifiers", f"the environment '{name}'")
    if _MODULE not in sys.modules:
        raise RecipeError(
            f"the environment '{name}' is played by verifiers 0.1, and {verifiers.__version__} is installed; "
            "install the extra: pip install 'rft-data[verifiers]'."
        )
    path = f"{name}:{MAKER}" if name.endswith(".py") else name
    make = load(path, "verifiers environment") if ":" in path else None
    try:
        with _signals_left_alone():
            made = verifiers.load_environment(name, **args) if make is None else make(**args)
    except Exception as err:  # an environment's own code
        raise RecipeError(
            f"the verifiers environment '{name}' cannot be made with the arguments {sorted(args)} "
            f"({type(err).__name__}: {err}); install its package, name its file (./my_env.py), or correct "
            "'args'."
        ) from err
    if not isinstance(made, verifiers.Environment):
        raise RecipeError(
            f"'{path}' made a {type(made).__name__}; wanted an environment of verifiers, as load_environment "
            "returns it."
        )
    return made


def verifiers_tasks(
    name: str,
    args: Mapping[str, object],
    *,
    size: int | None,
    taskset: str,
    heldout: float,
    difficulty: float | None = None,
) -> list[Task]:
    """The rows of an environment's dataset as tasks, and those of its evaluation dataset as held out.

    Each keeps all columns beside prompt and answer in its metadata, as the environment wants them.
    Args: size: at most so many of each; None: all.
    Raises: as `verifiers_environment`; RowError for a row whose prompt is none.
    """
    environment = verifiers_environment(name, args)
    most = -1 if size is None else size
    found: list[Task] = []
    if environment.build_dataset() is not None:
        found += _tasks(environment.get_dataset(most), taskset, difficulty, heldout)
    if environment.build_eval_dataset() is not None:
        found += _tasks(environment.get_eval_dataset(most), taskset, difficulty, 1.0)
    return list({task.task_id: task for task in found}.values())


def _tasks(rows: Dataset, taskset: str, difficulty: float | None, heldout: float) -> Iterator[Task]:
    for number, row in enumerate(rows):
        where = f"taskset '{taskset}', row {number} of the environment's dataset"
        prompt = prompt_messages(row["prompt"], where)
        kept = {key: value for key, value in row.items() if key not in ("prompt", "answer")}
        kept = {key: value for key, value in kept.items() if value is not None}
        yield make_task(taskset, prompt, answer_text(row.get("answer")), difficulty, heldout, kept)


@contextmanager
def _signals_left_alone() -> Iterator[None]:
    """Keep SIGINT and SIGTERM of the process: verifiers takes them when an environment is made.

    A run handles them itself, and outside of the main thread verifiers' own way is an error.
    """
    module: Any = sys.modules[_MODULE]
    given = module.signal
    nothing = SimpleNamespace(**{**vars(given), "signal": lambda *_: None})
    module.signal = nothing
    try:
        yield
    finally:
        module.signal = given
