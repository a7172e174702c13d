"""The plan of an explorer. It is data only: nothing is loaded or started here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from explorers.limits import Limits, recipe_limits
from rft_data.core.engine import Sampling


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """How an explorer samples groups, and the names under which their rows are stored."""

    run_id: str
    attempt: int
    explorer_id: str
    size: int
    """Rollouts of a group."""
    sampling: Sampling
    """Used for every rollout of a group but a greedy one."""
    limits: Limits
    greedy_member: bool = False
    """Whether member 0 of every group is decoded greedily, for baselines (ReMax)."""


@dataclass(frozen=True, slots=True)
class ExplorerPlan:
    """The parts of one explorer."""

    engine: Mapping[str, object]
    """`use` (a name in ENGINES of `explorers.engines.make`, or an import path) and its class's arguments."""
    model: str
    """Hugging Face folder. Its architecture and tokenizer count; its weights are never served. For an engine
    that takes messages: the model's name at the endpoint."""
    groups: GroupPlan
    reward: Sequence[Mapping[str, object]]
    """`{"use", "weight", "args"}` each, as `make_rewards` takes them."""
    workflow: Mapping[str, object]
    """`use` (a name in `explorers.workflows.make.WORKFLOWS`, or an import path) and `args`."""
    workflows: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Further ones in the same form, by the name that tasks give."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ExplorerPlan:
        """Read a plan from JSON values; the fields of `groups` are on the top level too.

        `group_size` is the size of a group, `sampling` has the fields of `Sampling`, `limits` has the fields
        of `Limits` that differ from the defaults.
        Raises: RecipeError for a limit that is not known or out of range; TypeError for other unknown names.
        """
        parts = dict(values)
        size = int(parts.pop("group_size"))
        groups = GroupPlan(
            run_id=parts.pop("run_id"),
            attempt=parts.pop("attempt"),
            explorer_id=parts.pop("explorer_id"),
            size=size,
            sampling=Sampling(**parts.pop("sampling")),
            limits=recipe_limits(parts.pop("limits"), size),
            greedy_member=parts.pop("greedy_member", False),
        )
        return cls(groups=groups, **parts)
