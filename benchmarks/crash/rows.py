"""Rows of the children: they follow from their group's name alone, so that a resent group is the
same group and the checker can rebuild every row without asking the buffer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from rft_data.core.rows import Experience, Task, experience_id_of

RUN = "run"
CONSUMER = "trainer"
GROUP_SIZE = 8
TASKS = tuple(Task("sums", ({"role": "user", "content": f"{i}+1="},), str(i + 1)) for i in range(16))
_DROPPED_EVERY = 5
_FAILED_EVERY = 11
_FAILED_ROWS = 3


def is_failed(group: Mapping[str, Any]) -> bool:
    """Whether the group's rollouts break down half way (it stores fewer rows, and none is trained)."""
    return "ordinal" in group and group["ordinal"] % _FAILED_EVERY == _FAILED_EVERY - 1


def group_rows(group: Mapping[str, Any]) -> list[Experience]:
    """The rows of one group, as the outside ledger names it.

    A rollout group has `group_id`, `ordinal` and `version`; a group of expert rows only `group_id`.
    """
    count = _FAILED_ROWS if is_failed(group) else GROUP_SIZE
    return [_row(group, member) for member in range(count)]


def _row(group: Mapping[str, Any], member: int) -> Experience:
    group_id = group["group_id"]
    rollout = "ordinal" in group
    place = group["ordinal"] if rollout else int(group_id.rsplit("-", 1)[1])
    task = TASKS[place % len(TASKS)]
    attempt = int(group_id.split("/")[1].split("-")[0])
    noise = hashlib.blake2b(f"{group_id}/{member}".encode(), digest_size=40).digest()
    length = 6 + noise[0] % 30
    mask = [0, 0, *[1] * (length - 2)]
    common: dict[str, Any] = {
        "experience_id": experience_id_of(RUN, task.key, attempt, group_id, member),
        "run_id": RUN,
        "taskset": task.taskset,
        "task_id": task.task_id,
        "group_id": group_id,
        "attempt": attempt,
        "member": member,
        "messages": [*task.messages, {"role": "assistant", "content": noise.hex()}],
        "prompt_messages": 1,
        "completion_text": noise.hex(),
        "reward_parts": {"exact": noise[1] / 255},
        "metadata": {"noise": noise[2]},
    }
    if not rollout:
        return Experience(source="expert", reward=1.0, **common)
    version = group["version"]
    return Experience(
        source="rollout",
        token_ids=list(noise[:length]),
        prompt_length=2,
        action_mask=mask,
        logprobs=[-m * n / 64 for m, n in zip(mask, noise, strict=False)],
        version_min=version,
        version_max=version,
        version_spans=((version, 2, length),),
        finish_reason="stop",
        reward=0.5 if place % _DROPPED_EVERY == 0 else float(member % 2),
        sampling={"temperature": 1.0},
        **common,
    )
