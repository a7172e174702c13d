"""Groups of rollouts on their way: from the ticket that starts one to the lease that trains on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rft_data.core.rows import Experience, Task, TaskKey
from rft_data.core.words import GroupOutcome


@dataclass(frozen=True, slots=True)
class Ticket:
    """Permission to start one group; every ticket is closed exactly once."""

    group_id: str
    ordinal: int
    """Place in the run's order of admission, 0-based."""
    version: int
    """Policy version the engine served at admission."""
    round: int = 0
    """The round of admission that gave it, from 0: the tasks of one round are drawn together."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A ticket and the task to play for it."""

    ticket: Ticket
    task: Task


@dataclass(frozen=True, slots=True)
class Played:
    """The result of an explorer for one ticket; the rows are stored already."""

    ticket: Ticket
    task: TaskKey
    outcome: GroupOutcome
    seqs: tuple[int, ...]
    """Its stored rows, by member; fewer than `rows` if validation refused some."""
    rows: int
    """Number of rows that the explorer sampled."""
    error: str = ""
    """Error by which it failed, or empty."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The outcome of one ticket."""

    ticket: Ticket
    task: TaskKey
    rewards: tuple[float | None, ...]
    """Effective reward of each rollout (that of its last row), in order of seq; None where it has none."""
    outcome: GroupOutcome
    version_min: int
    """Lowest version over the group (the ticket's version when it failed)."""
    seqs: tuple[int, ...] = ()
    """Rows of the group that training may use: all its rows when kept, () when an operator dropped it."""
    dropped_by: str = ""
    """The operator that dropped the whole group; empty when it was kept."""
    tokens: int = field(default=0, compare=False)
    """Sampled tokens of its rows. Not stored: 0 in a group that an earlier start of the run closed."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch of whole groups, leased to one consumer for one step."""

    consumer: str
    step: int
    epoch: int
    """Epoch of the consumer that holds it; a consumer with an older one is fenced."""
    version: int
    """Policy version the trainer held when it leased."""
    seqs: tuple[int, ...]
    group_ids: tuple[str, ...]
    digest: str
    """`content_id(seqs)`; checked on redelivery."""


@dataclass(frozen=True, slots=True)
class Group:
    """The result of one ticket."""

    ticket: Ticket
    task: Task
    experiences: tuple[Experience, ...]
    outcome: GroupOutcome
    """`arrived` or `failed`."""
    error: str = ""
    """Error by which it failed, or empty."""
