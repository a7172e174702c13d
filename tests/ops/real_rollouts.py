"""GSM8K's published model solutions, or those of the shipped sample, as stored experiences."""

import numpy as np
import pyarrow as pa

from rft_data.core import codec, schema
from rft_data.core.rows import Experience, Task
from tests.gsm8k import solutions

SOLVERS = ("6b_finetuning", "6b_verification")


def gsm8k_tasks(questions: int) -> list[Task]:
    """The first questions, with the reference solution as answer."""
    return [
        Task("gsm8k", ({"role": "user", "content": line["question"]},), line["ground_truth"])
        for line in solutions(questions)
    ]


def gsm8k_rollouts(questions: int) -> list[Experience]:
    """Two solutions a question, by two models, as one group; the reward is whether it was right."""
    rows = []
    for number, (line, task) in enumerate(zip(solutions(questions), gsm8k_tasks(questions), strict=True)):
        for member, solver in enumerate(SOLVERS):
            text = line[solver]["solution"]
            rows.append(
                Experience(
                    experience_id=f"{number}-{member}",
                    source="import",
                    run_id="gsm8k",
                    taskset="gsm8k",
                    task_id=task.task_id,
                    group_id=f"g{number}",
                    member=member,
                    messages=[*task.messages, {"role": "assistant", "content": text}],
                    prompt_messages=1,
                    completion_text=text,
                    reward=float(line[solver]["is_correct"]),
                )
            )
    return rows


def stored(rows: list[Experience]) -> pa.Table:
    """The rows as a stored EXPERIENCES table; `seq` starts at 0."""
    table = codec.to_table(rows, schema.EXPERIENCES)
    table = table.append_column("seq", pa.array(np.arange(len(rows))))
    return table.append_column("digest", pa.array([""] * len(rows), pa.string()))
