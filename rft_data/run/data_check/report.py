"""Result of a check of tasks, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class Column:
    """One column of a table."""

    name: str
    kind: str
    """The kinds of its values: text, number, messages, list, ..."""
    missing: int = 0
    """Rows where it is null or not there."""


@dataclass(frozen=True, slots=True)
class Example:
    """One task, as the model will see it."""

    prompt: str
    """Rendered by the chat template, or role and content of each message where there is no tokenizer."""
    tokens: int | None
    """None where there is no tokenizer."""
    answer: str | None
    metadata: Sequence[str]
    """Keys of what the task keeps beside."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long prompts are."""

    unit: str
    """`tokens`, or `characters` where there is no tokenizer."""
    measured: int
    """Tasks that were measured, evenly chosen where there are many."""
    p50: int
    p90: int
    p99: int
    longest: int
    room: int | None = None
    """Tokens that a completion leaves for a prompt; None without a recipe or a tokenizer."""
    too_long: int = 0
    """Measured tasks that need more."""


@dataclass(slots=True)
class TasksetReport:
    """Counts, columns and problems of one taskset, or of one source of imports."""

    name: str
    source: str
    kind: str = "taskset"
    """`taskset`, `import` or `rollouts`."""
    read_as: str = ""
    """How columns become tasks: a family that was recognised, or the columns named."""
    rows: int = 0
    tasks: int = 0
    """Distinct tasks."""
    heldout: int = 0
    answers: int = 0
    """Tasks with a reference answer."""
    duplicates: int = 0
    """Rows that make a task which another row made."""
    same_prompt: int = 0
    """Further tasks that ask what another one asks, with another answer or other metadata."""
    leaked: int = 0
    """Training tasks that ask what a held-out task asks, spaces and case aside."""
    stored: dict[str, int] | None = None
    """Of imports and rollouts: how many rows of each table they become; None for a taskset."""
    columns: list[Column] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    lengths: Lengths | None = None
    problems: list[str] = field(default_factory=list)
    """Reasons why it cannot feed a run, with what to write instead."""
    warnings: list[str] = field(default_factory=list)
    """Facts that a person should know."""
    write: str = ""
    """For a source that no recipe names yet: its entry of `tasks`, or of `imports`, in YAML."""


@dataclass(slots=True)
class DataReport:
    """Result of a check."""

    tasksets: list[TasksetReport]
    problems: list[str] = field(default_factory=list)
    """Problems of all of them together."""

    @property
    def is_sound(self) -> bool:
        """Whether a run can be fed with the tasks."""
        return not self.problems and not any(one.problems for one in self.tasksets)

    def as_json(self) -> dict[str, object]:
        """The report as JSON values."""
        return {"sound": self.is_sound, **asdict(self)}
