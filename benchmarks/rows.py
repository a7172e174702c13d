"""Rows for benchmarks: rollouts with random tokens, logprobs and English-like text, as Arrow tables.

A pool of distinct contents is made once; each batch takes from it and gets ids of its own, so making
rows costs little beside storing them.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from rft_data.core.codec import aligned, from_table, to_table
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import Experience, TaskKey, experience_id_of
from rft_data.core.schema import INCOMING

GROUP = 8
ARRAYS = {"token_ids": np.int32, "action_mask": np.int8, "logprobs": np.float32}
"""The lists of a row that every rollout has."""


class RowMaker:
    """Tables of rollouts, in groups of eight, numbered from 0 on."""

    def __init__(self, tokens: int, *, pool: int = 1024) -> None:
        """`tokens` per row (prompt and completion); `pool` distinct contents."""
        rng = np.random.default_rng(0)
        self._tokens = tokens
        self._words = np.array(
            ["".join(rng.choice(list("etaoinshrdlu"), rng.integers(2, 9))) for _ in range(4000)]
        )
        self._pool = to_table([self._row(rng) for _ in range(pool)], INCOMING)
        self._made = 0

    def _row(self, rng: np.random.Generator) -> Experience:
        count = self._tokens
        prompt = count // 5
        mask = np.zeros(count, np.int8)
        mask[prompt:] = 1
        return Experience(
            experience_id="-",
            source="rollout",
            run_id="run",
            taskset="bench",
            task_id="-",
            group_id="-",
            token_ids=rng.integers(0, 150_000, count).astype(np.int32),
            prompt_length=prompt,
            action_mask=mask,
            logprobs=(mask * rng.normal(-1, 1, count)).astype(np.float32),
            version_min=1,
            version_max=1,
            version_spans=((1, prompt, count),),
            completion_text=" ".join(rng.choice(self._words, int(0.65 * (count - prompt)))),
            finish_reason="stop",
            reward=float(rng.random()),
            reward_parts={"exact": 1.0},
            sampling={"temperature": 1.0, "max_tokens": count},
            tokenizer_hash="ab" * 16,
            explorer_id="explorer-0",
        )

    def table(self, rows: int) -> pa.Table:
        """The next `rows` rows, ready for `Buffer.append`."""
        numbers = range(self._made, self._made + rows)
        self._made += rows
        start = numbers.start % self._pool.num_rows
        picked = [(start + i) % self._pool.num_rows for i in range(rows)]
        contiguous = picked[-1] - picked[0] == rows - 1
        table = self._pool.slice(start, rows) if contiguous else self._pool.take(pa.array(picked))
        tasks = [TaskKey("bench", f"t{n // GROUP}") for n in numbers]
        groups = [f"run/0-{n // GROUP:08d}" for n in numbers]
        columns = {
            "experience_id": [
                experience_id_of("run", task, 0, group, n % GROUP)
                for n, task, group in zip(numbers, tasks, groups, strict=True)
            ],
            "task_id": [task.task_id for task in tasks],
            "group_id": groups,
            "member": [n % GROUP for n in numbers],
        }
        for name, values in columns.items():
            field = INCOMING.field(name)
            table = table.set_column(INCOMING.get_field_index(name), field, pa.array(values, field.type))
        [batch] = table.combine_chunks().to_batches()  # memory of its own, as an explorer's rows have
        return pa.Table.from_batches([aligned(batch)], INCOMING)


def group_result(number: int) -> GroupResult:
    """A kept group of eight whose rows follow one another."""
    seqs = tuple(range(number * GROUP, (number + 1) * GROUP))
    ticket = Ticket(f"run/0-{number:08d}", number, 1)
    return GroupResult(ticket, TaskKey("bench", "t"), (1.0,) * GROUP, "arrived", 1, seqs)


def arrays_of_rows(table: pa.Table) -> list[dict[str, np.ndarray]]:
    """The token lists of each row as NumPy arrays, without a copy."""
    rows: list[dict[str, np.ndarray]] = []
    for batch in table.select(list(ARRAYS)).to_batches():
        columns = []
        for lists in batch.columns:
            values, ends = lists.values.to_numpy(), lists.offsets.to_pylist()
            columns.append([values[start:end] for start, end in pairwise(ends)])
        rows += [dict(zip(ARRAYS, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows


def as_objects(table: pa.Table) -> list[Experience]:
    """Rows as an explorer holds them: token lists as NumPy arrays."""
    rows = from_table(table, INCOMING)
    for row, arrays in zip(rows, arrays_of_rows(table), strict=True):
        row |= {name: array.copy() for name, array in arrays.items()}
    return [Experience(**row) for row in rows]
