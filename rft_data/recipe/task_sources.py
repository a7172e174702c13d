"""The sections of a recipe about where tasks come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from rft_data.recipe.section import Section

_NO_SPLITS = (
    "a file has no splits: name another file, or take 'where'; 'heldout' of the taskset holds some out"
)

REFUSED: Mapping[str, Mapping[str, str]] = {
    "reasoning_gym": {
        "limit": "it makes 'size' tasks: give that",
        "where": "what it makes has no columns; choose by its 'args', or drop tasks with 'task_ops'",
        "shuffle": "it draws in an order of its own: another 'seed' gives another",
        "split": "it has no splits; 'heldout' of the taskset holds some out",
        "streaming": "it fetches nothing",
    },
    "verifiers": {
        "limit": "give 'size', at most so many rows of each of its datasets",
        "where": "the environment chooses its rows, by 'args'",
        "shuffle": "the environment orders its rows, by 'args'",
        "split": "the environment has two datasets, and that of its evaluation is held out",
        "streaming": "the environment loads its datasets itself",
    },
    "served": dict.fromkeys(
        ("limit", "where", "shuffle", "split", "streaming"), "clients of the run decide what they ask"
    ),
    "stored": {
        "split": "tasks have the split that they were stored with; 'heldout' of the taskset adds to it",
        "streaming": "the buffer is read once, and nothing is fetched",
    },
    "jsonl": {
        **dict.fromkeys(
            ("limit", "where", "shuffle"), "write use: file, which reads the same file and has it"
        ),
        "split": _NO_SPLITS,
        "streaming": "a file is read line by line as it is",
    },
    "file": {
        "split": _NO_SPLITS,
        "streaming": "a file is read row by row as it is, and 'limit' ends the reading",
    },
    "modelscope": {"streaming": "its package fetches whole files; give 'limit' for fewer rows"},
    "function": {
        "split": "hand it to the function, in 'args'",
        "streaming": "rows that it yields are read one by one; 'limit' ends the reading",
    },
}
"""The reason that a kind of source does not have a key that others have."""


class ReasoningGym(Section):
    """Procedurally generated tasks of the `reasoning-gym` package."""

    use: Literal["reasoning_gym"]
    """Tasks are generated, not read from a file."""
    dataset: str
    """Name of the dataset in that package, for example `chain_sum`."""
    size: int = Field(ge=1)
    """How many tasks to generate; repeated ones are stored once."""
    seed: int = 0
    """Seed of the generator, apart from the recipe's, so that all runs get the same tasks."""
    args: dict[str, object] = Field(default_factory=dict)
    """Arguments of that dataset's config."""


class JsonLines(Section):
    """A local file, one JSON object per line."""

    use: Literal["jsonl"]
    """Tasks or rollouts are read from a file."""
    path: str
    """The file, one JSON object a line, relative to the working directory."""


class VerifiersTasks(Section):
    """The datasets of an environment of the package `verifiers`; that of its evaluation is held out."""

    use: Literal["verifiers"]
    """Tasks are the rows of a dataset, with all that the environment wants to know of them."""
    environment: str
    """Id of an installed environment, its file (`./my_env.py`), or the import path of what makes it."""
    args: dict[str, object] = Field(default_factory=dict)
    """Arguments of its `load_environment`; give the same to the workflow."""
    size: int | None = Field(default=None, ge=1)
    """At most so many rows of each dataset, those that come first; left out: all."""


class StoredTasks(Section):
    """Tasks that the run's buffer holds already, for example imported ones."""

    use: Literal["stored"]
    """The tasks are those stored under the taskset's `name`, with the split they were stored with."""
    where: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """A condition in DuckDB's SQL over `task_id`, `prompt`, `answer`, `split`, `difficulty`, and the keys of
    their metadata."""
    shuffle: int | None = Field(default=None, exclude_if=lambda given: given is None)
    """The seed of a shuffle; left out: they are in the order in which they were stored."""
    limit: int | None = Field(default=None, ge=1, exclude_if=lambda given: given is None)
    """At most so many of them; left out: all."""


class ServedTasks(Section):
    """Requests of clients of the run's own server; the workflow `served` plays them."""

    use: Literal["served"]
    """There is one task, of which each trajectory is a rollout; its rows hold what was really asked."""


class RowChoice(Section):
    """The rows of a source that become tasks: those that pass `where`, shuffled, the first `limit`."""

    use: str
    """The kind of source."""
    where: str | None = None
    """A condition over the columns, in SQL as DuckDB has it: `level >= 3 and meta.split = 'algebra'`."""
    shuffle: int | None = None
    """The seed of a shuffle, apart from the recipe's, so that all runs get the same rows; left out: none."""
    limit: int | None = Field(default=None, ge=1)
    """At most so many rows; left out: all."""


class FileTasks(RowChoice):
    """A local file of rows; its suffix says what it is."""

    use: Literal["file"]
    """Tasks are read from a file."""
    path: str
    """JSON lines or a JSON array (.jsonl, .ndjson, .json), .csv (each also .gz or .zst), .parquet, .arrow, or
    a .lance folder; relative to the working directory or to the recipe's folder."""


class HuggingFaceTasks(RowChoice):
    """A dataset of the package `datasets`: of the hub, or a folder."""

    use: Literal["huggingface"]
    """Tasks are the rows of a dataset."""
    path: str
    """Id on the hub (`org/name`), a folder that `save_to_disk` wrote, or a folder with data files."""
    name: str | None = None
    """The dataset's config, where it has several, for example `main`."""
    split: str | None = None
    """Its split, for example `train` or `train[:10%]`; left out: the only one there is."""
    revision: str | None = None
    """Branch, tag or commit on the hub; a branch is read as it is now: a commit can be repeated."""
    streaming: bool = False
    """Rows are fetched as they are read, and nothing is kept on the disk; it needs `limit`."""

    @model_validator(mode="after")
    def _ends(self) -> HuggingFaceTasks:
        if self.streaming and self.limit is None:
            raise ValueError("'streaming' may never end, and a run holds its tasks in memory; give 'limit'")
        return self


class ModelScopeTasks(RowChoice):
    """A dataset of ModelScope's hub; its files are kept in the cache of `modelscope-hub`."""

    use: Literal["modelscope"]
    """Tasks are the rows of a dataset."""
    path: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    """Id on the hub, `owner/name`."""
    name: str | None = None
    """The dataset's config, where it has several."""
    split: str | None = None
    """Its split, for example `train`; left out: the only one there is."""
    revision: str | None = None
    """Branch, tag or commit; left out: `master` as it is now. A full commit can be repeated."""


class FunctionTasks(RowChoice):
    """A function of one's own that makes the rows."""

    use: str = Field(pattern=":")
    """`package.module:function` or `./file.py:function`, called with `args`; it returns or yields maps."""
    args: dict[str, object] = Field(default_factory=dict)
    """Keyword arguments of the function."""


def kind_of_source(source: object) -> str:
    """The `use` of a source, or `function` for an import path."""
    use = source.get("use") if isinstance(source, dict) else getattr(source, "use", None)
    return "function" if isinstance(use, str) and ":" in use else str(use)


TableSource = FileTasks | HuggingFaceTasks | ModelScopeTasks | FunctionTasks
"""Sources whose rows are chosen, and whose columns are recognised where none is named."""
TABLES = ("file", "huggingface", "modelscope", "function", "jsonl")
"""Kinds of sources with rows and columns."""
AnyTable = (FileTasks, HuggingFaceTasks, ModelScopeTasks, FunctionTasks, JsonLines)
"""The sections of these."""
Source = Annotated[
    Annotated[ReasoningGym, Tag("reasoning_gym")]
    | Annotated[JsonLines, Tag("jsonl")]
    | Annotated[FileTasks, Tag("file")]
    | Annotated[HuggingFaceTasks, Tag("huggingface")]
    | Annotated[ModelScopeTasks, Tag("modelscope")]
    | Annotated[VerifiersTasks, Tag("verifiers")]
    | Annotated[StoredTasks, Tag("stored")]
    | Annotated[ServedTasks, Tag("served")]
    | Annotated[FunctionTasks, Tag("function")],
    Discriminator(
        kind_of_source,
        custom_error_type="unknown_source",
        custom_error_message="'use' is file, huggingface, modelscope, jsonl, reasoning_gym, verifiers, "
        "stored, served, or a function of your own ('./file.py:function')",
    ),
]
