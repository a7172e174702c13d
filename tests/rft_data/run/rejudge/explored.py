"""Books of a run that explored, made by the real operators and the real judge; the rows are small."""

from collections.abc import Sequence

from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.core.groups import GroupResult, Played, Ticket
from rft_data.core.rows import Task, TaskKey, experience_id_of
from rft_data.loop.closing import GroupCloser
from tests.rft_data.conftest import make_experience

ADVANTAGES = [{"grpo_advantage_mapper": {}}]
STRICT = [{"reward_range_filter": {}}, {"reward_variance_filter": {}}, *ADVANTAGES]
LENIENT = [{"reward_range_filter": {}}, *ADVANTAGES]
"""Keeps groups whose rewards are all the same."""


def pipeline(operators: Sequence[dict], store: Buffer | None = None) -> OperatorPipeline:
    return OperatorPipeline(operators, name="experience_ops", store=store)


def explore(
    buffer: Buffer,
    rewards: Sequence[Sequence[float | None]],
    operators: Sequence[dict] = STRICT,
    run_id: str = "run",
    tasks: Sequence[Task] = (),
) -> list[GroupResult]:
    """One group for each list of rewards, stored, judged and closed; version 3 sampled it."""
    rows, played = [], []
    for ordinal, group in enumerate(rewards):
        group_id = f"{run_id}/0-{ordinal:08d}"
        task = tasks[ordinal].key if tasks else TaskKey("arith", f"t{ordinal}")
        rows += [
            make_experience(
                experience_id=experience_id_of(run_id, task, 0, group_id, member),
                run_id=run_id,
                task_id=task.task_id,
                group_id=group_id,
                member=member,
                reward=reward,
                completion_text=f"answer {member} of group {ordinal}",
                messages=(
                    {"role": "user", "content": f"question {ordinal}"},
                    {"role": "assistant", "content": f"answer {member} of group {ordinal}"},
                ),
                prompt_messages=1,
            )
            for member, reward in enumerate(group)
        ]
        ticket = Ticket(group_id, ordinal, 3, ordinal)
        seqs = tuple(range(len(rows) - len(group), len(rows)))
        played.append(Played(ticket, task, "arrived", seqs, len(group)))
    done = buffer.append(rows)
    assert done.seqs is not None
    first = done.seqs[0]
    played = [
        Played(p.ticket, p.task, p.outcome, tuple(seq + first for seq in p.seqs), p.rows) for p in played
    ]
    stored = buffer.take([seq for group in played for seq in group.seqs])
    return GroupCloser(buffer, pipeline(operators, buffer), run_id, 0, 1).judge(played, stored)
