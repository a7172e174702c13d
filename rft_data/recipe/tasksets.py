"""The sections of a recipe about what is read: tasksets, experts' solutions, files of stored rollouts."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from rft_data.recipe.offline import SftRows, TrainedSource
from rft_data.recipe.section import Section

Fraction = Annotated[float, Field(ge=0, le=1)]


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


Source = Annotated[ReasoningGym | JsonLines | VerifiersTasks | StoredTasks, Field(discriminator="use")]


class Taskset(Section):
    """A named source of tasks."""

    name: str
    """Stored with each task; (taskset, task_id) is a task's key."""
    source: Source
    """A generator or a file that the tasks come from."""
    prompt: str = "question"
    """Field of a file that is the prompt: text, which becomes the user message, or chat messages."""
    answer: str | None = "answer"
    """Field of a file that is the reference answer; null: the tasks have none."""
    difficulty: float | None = None
    """Offline difficulty of all its tasks, larger is harder."""
    heldout: Fraction = 0.0
    """Share kept for evaluation, chosen by a hash of the prompt; system messages do not count."""
    metadata: list[str] | None = Field(default=None, exclude_if=lambda given: given == [])
    """Fields of the source that each task keeps under their names, for selectors and rewards that read them.
    Left out: all columns of a file but prompt and answer, and nothing of a generator, whose fields are those
    of its `metadata`."""
    workflow: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """Name of the workflow that plays its tasks, in `explorer.workflows`; left out: `explorer.workflow`."""
    images: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """Field of a file with the images of each task: one or a list, paths relative to the file or data URIs.
    A prompt shows them where it says `<image>`, else before its text. Left out: tasks are text."""

    @model_validator(mode="before")
    @classmethod
    def _nothing_of_a_generator(cls, given: Any) -> Any:
        """Stored recipes say `null` where all columns are kept, and nothing where none is, as in 0.6.0."""
        source = given.get("source") if isinstance(given, dict) else None
        keeps_none = isinstance(source, dict) and source.get("use") == "reasoning_gym"
        return {"metadata": [], **given} if keeps_none else given

    @model_validator(mode="after")
    def _images_of_a_file(self) -> Taskset:
        if self.images is not None and not isinstance(self.source, JsonLines):
            raise ValueError(
                f"'images' names a field of a file, and the source is '{self.source.use}'; remove it"
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
    """Worked solutions, stored as experiences of source `expert`."""

    use: str
    """`package.module:function`, called as function(task) -> completion text, or a list of chat messages that
    goes on from the task's and ends with an assistant's: a solution of several turns."""
    limit: int = Field(ge=1)
    """At most this many training tasks of each taskset get one."""
    tasksets: list[str] = Field(min_length=1)
    """Names of entries of `tasks` that get solutions."""


class StoredExperts(SftRows):
    """Stored answers as worked solutions, for example imported ones: each is copied as an expert's answer."""

    use: Literal["stored"]
    """The solutions are rows of the buffer, not made by a function."""
    sources: list[TrainedSource] = Field(default=["import", "expert"], min_length=1)
    """Which kinds of rows: imported, worked solutions of experts, or sampled by a policy."""
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
    """One column of completions in a file of rollouts."""

    name: str
    """Recorded as the experiences' explorer."""
    text: str
    """Field of the completion; dots go into nested objects."""
    label: str | None = None
    """Field that says whether it is correct, to compare the reward with."""


class Rollouts(Section):
    """A file of rollouts that were made elsewhere."""

    name: str
    """How the report calls this file."""
    source: JsonLines
    """The file, one question with its completions per line."""
    taskset: str
    """The taskset they answer; a row belongs to the task with the same prompt."""
    prompt: str = "question"
    """Field with the question; it finds the task whose prompt is the same but for white space."""
    completions: list[StoredCompletions] = Field(min_length=1)
    """Fields of a line that hold completions, each stored as an experience."""
