"""The sections of a recipe about what is read: tasksets, experts' solutions, files of stored rollouts.

The sources of tasks are in `task_sources.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from rft_data.core.errors import RecipeError
from rft_data.recipe.offline import SftRows, TrainedSource
from rft_data.recipe.row_sources import RowSource
from rft_data.recipe.section import Section
from rft_data.recipe.task_sources import (
    TABLES,
    AnyTable,
    Source,
    VerifiersTasks,
    kind_of_source,
)
from rft_data.tasks.columns import is_template, template_fields

Fraction = Annotated[float, Field(ge=0, le=1)]


class Taskset(Section):
    """A named source of tasks."""

    name: str
    """Stored with each task; (taskset, task_id) is a task's key."""
    source: Source
    """A generator or a file that the tasks come from."""
    prompt: str | None = "question"
    """Column that is the prompt: text, which becomes the user message, or chat messages; dots lead into
    nested columns (`problem.text`). With braces it is a template: `"{question}\\nIn one line."`. Left out
    with source file, huggingface or a function: prompt and answer are recognised by the columns' names."""
    answer: str | None = "answer"
    """Column, or template, that is the reference answer; null: the tasks have none."""
    system: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """A system message, or a template of one, before each prompt."""
    difficulty: float | None = None
    """Offline difficulty of all its tasks, larger is harder."""
    heldout: Fraction = 0.0
    """Share kept for evaluation, chosen by a hash of the prompt; system messages do not count."""
    metadata: list[str] | None = Field(default=None, exclude_if=lambda given: given == [])
    """Fields of the source that each task keeps under their names, for selectors and rewards that read them.
    Left out: all columns of a file but prompt and answer, and nothing of a generator, whose fields are those
    of its `metadata`."""
    workflow: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """Name of the workflow that plays its tasks, in `explorer.workflows`; left out: `explorer.workflow`. A
    template takes it from each row: `"{kind}"`."""
    reward: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """Name of the reward that scores its tasks, in `explorer.reward`, or a template of it; left out: all."""
    images: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """Column with the images of each task: one or a list of paths relative to the file, data URIs, or images
    as `datasets` stores them. A prompt shows them where it says `<image>`, else before its text. Left out:
    tasks are text."""
    tools: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """Column with the tools that each task offers, as definitions in OpenAI's form or the JSON text of them.
    `single_turn` shows them to the model, and what it calls is the answer; workflows of your own read
    `task.tools`. Left out: tasks offer none."""

    @model_validator(mode="before")
    @classmethod
    def _nothing_of_a_generator(cls, given: Any) -> Any:
        """Stored recipes say `null` where all columns are kept, and nothing where none is, as in 0.6.0."""
        source = given.get("source") if isinstance(given, dict) else None
        keeps_none = isinstance(source, dict) and source.get("use") == "reasoning_gym"
        return {"metadata": [], **given} if keeps_none else given

    @model_validator(mode="before")
    @classmethod
    def _recognised(cls, given: Any) -> Any:
        """Without a column for the prompt, those of a table are recognised: stored recipes say `null`."""
        source = given.get("source") if isinstance(given, dict) else None
        is_table = kind_of_source(source) in TABLES and kind_of_source(source) != "jsonl"
        return {"prompt": None, "answer": None, **given} if is_table and "prompt" not in given else given

    @field_validator("prompt", "answer", "system", "workflow", "reward")
    @classmethod
    def _template(cls, given: str | None) -> str | None:
        if given is not None and is_template(given):
            try:
                template_fields(given)
            except RecipeError as err:
                raise ValueError(str(err)) from err
        return given

    @model_validator(mode="after")
    def _columns_named(self) -> Taskset:
        if self.prompt is None and not isinstance(self.source, AnyTable):
            raise ValueError(f"'prompt' names a column, and the source is '{self.source.use}'; remove it")
        if self.prompt is None and self.answer is not None:
            raise ValueError("'answer' is given and 'prompt' is not; name both columns, or neither")
        return self

    @model_validator(mode="after")
    def _images_of_a_file(self) -> Taskset:
        if isinstance(self.source, AnyTable):
            return self
        for key in ("images", "system", "reward", "tools"):
            if getattr(self, key) is not None:
                raise ValueError(
                    f"'{key}' is for rows of a table, and the source is '{self.source.use}'; remove it"
                )
        return self

    @model_validator(mode="after")
    def _whole(self) -> Taskset:
        if self.metadata is not None and isinstance(self.source, VerifiersTasks):
            raise ValueError(
                f"taskset '{self.name}' has source verifiers, whose environment needs all columns; leave out "
                "'metadata'"
            )
        return self


class Experts(Section):
    """Solutions to imitate, stored as experiences of source `expert` with reward 1.0; nothing checks them."""

    use: str
    """`package.module:function`, called as function(task) -> completion text, or a list of chat messages that
    goes on from the task's and ends with an assistant's: a solution of several turns."""
    limit: int | None = Field(default=None, ge=1)
    """At most this many training tasks of each taskset get one; left out: all."""
    tasksets: list[str] = Field(min_length=1)
    """Names of entries of `tasks` that get solutions."""


class StoredExperts(SftRows):
    """Stored answers as worked solutions, for example imported ones: each is copied as an expert's answer."""

    use: Literal["stored"]
    """The solutions are rows of the buffer, not made by a function."""
    sources: list[TrainedSource] = Field(default=["import", "expert"], min_length=1)
    """Kinds of rows: imported, worked solutions of experts, or sampled by a policy."""
    limit: int = Field(ge=1)
    """At most so many, those stored first. Rows whose prompt is held out are left out."""

    tasksets: ClassVar[tuple[str, ...]] = ()
    """They need no taskset of the recipe."""


def _made_or_stored(expert: object) -> str:
    use = expert.get("use") if isinstance(expert, dict) else getattr(expert, "use", None)
    return "stored" if use == "stored" else "made"


AnyExperts = Annotated[
    Annotated[Experts, Tag("made")] | Annotated[StoredExperts, Tag("stored")], Discriminator(_made_or_stored)
]


class StoredCompletions(Section):
    """One column of completions among rollouts."""

    name: str
    """Recorded as the experiences' explorer."""
    text: str
    """Field of the completion; dots go into nested objects."""
    label: str | None = None
    """Field that says whether it is correct, to compare the reward with."""


class Rollouts(Section):
    """Rollouts that were made elsewhere."""

    name: str
    """How the report calls them."""
    source: RowSource
    """A file, dataset or function, each row a question with its completions."""
    taskset: str
    """The taskset they answer; a row belongs to the task with the same prompt."""
    prompt: str = "question"
    """Field with the question; it finds the task whose prompt is the same but for white space."""
    completions: list[StoredCompletions] = Field(min_length=1)
    """Fields of a row that hold completions, each stored as an experience."""
