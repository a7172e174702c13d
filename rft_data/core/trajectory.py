"""One finished rollout, as rewards of trajectories and of groups see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rft_data.core.rows import Experience, Message, Task
from rft_data.core.words import NOT_SAMPLED


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A rollout of one task, from its prompt to its last token."""

    task: Task
    completion: str
    """The text that a reward of completions is given: what the policy said, or said last."""
    messages: Sequence[Message] = ()
    """The whole conversation, the prompt included."""
    prompt_messages: int = 0
    """How many of `messages` are the prompt."""
    token_ids: Sequence[int] = ()
    """Prompt and completion; empty where the workflow gave none."""
    action_mask: Sequence[int] = ()
    """1 where the policy sampled the token, 0 elsewhere; as long as `token_ids`."""
    finish_reason: str = NOT_SAMPLED
    environment: Mapping[str, object] = field(default_factory=dict)
    """State of the environment at the end (JSON values); empty without one."""
    member: int = 0
    """Its place in the group."""

    @property
    def tool_results(self) -> list[Message]:
        """The messages of role `tool`, in order."""
        return [message for message in self.messages if message.get("role") == "tool"]


def row_trajectory(task: Task, rows: Sequence[Experience]) -> Trajectory:
    """The trajectory of one rollout, as far as its rows show it; the last turn holds the conversation."""
    last = max(rows, key=lambda row: row.turn)
    state = last.metadata.get(ENVIRONMENT_STATE)
    return Trajectory(
        task=task,
        completion=last.completion_text,
        messages=last.messages,
        prompt_messages=last.prompt_messages,
        token_ids=last.token_ids if last.token_ids is not None else (),
        action_mask=last.action_mask if last.action_mask is not None else (),
        finish_reason=last.finish_reason,
        environment=state if isinstance(state, Mapping) else {},
        member=last.member,
    )


ENVIRONMENT_STATE = "environment_state"
"""Key of a row's `metadata` under which a workflow stores the state that rewards of groups are to see."""
