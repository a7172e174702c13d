"""Rollouts as text, from stored rows."""

from __future__ import annotations

import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.words import Verdict
from rft_data.run.watch.samples import SAMPLES, Sample, plain_text, samples_of_step, table_rows
from tests.rft_data.conftest import make_experience


def with_verdicts(rows: pa.Table, masked: list[bool]) -> pa.Table:
    """What a lease adds: advantages by token, and shaped rewards."""
    count = rows.num_rows
    return (
        rows.append_column("advantage", pa.array([[1.0, 0.5]] * count, pa.list_(pa.float32())))
        .append_column("masked", pa.array(masked))
        .append_column("shaped_reward", pa.array([0.25] + [None] * (count - 1), pa.float32()))
    )


def test_samples_have_prompt_completion_effective_reward_advantage_and_verdict(buffer: Buffer) -> None:
    talk = (
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1+1="},
        {"role": "assistant", "content": "3"},
    )
    odd = {"messages": talk, "prompt_messages": 2, "completion_text": "3" * 5000}
    stored = buffer.append([make_experience(0, prompt_messages=1), make_experience(1, **odd)])
    rows = buffer.take(stored.seqs)
    first, second = samples_of_step(rows, with_verdicts(rows, [False, True]))
    assert first == Sample("1+1=", "2", 0.25, 0.75, Verdict.KEPT)
    assert second.prompt == "system: Add.\nuser: 1+1="
    assert second.completion == "3" * 4000 + "..."
    assert (second.reward, second.verdict) == (1.0, Verdict.MASKED)
    assert table_rows([first]) == [["1+1=", "2", 0.25, 0.75, "kept"]]
    assert plain_text([first]) == "    reward 0.25, advantage 0.75, kept\n    1+1=\n    --> 2"


def test_of_many_rows_a_few_are_shown_from_the_first_to_the_last(buffer: Buffer) -> None:
    many = [make_experience(number, completion_text=str(number)) for number in range(11)]
    rows = buffer.take(buffer.append(many).seqs)
    found = samples_of_step(rows, with_verdicts(rows, [False] * 11))
    assert len(found) == SAMPLES
    assert [found[0].completion, found[-1].completion] == ["0", "10"]
    assert samples_of_step(rows.slice(0, 0), with_verdicts(rows, [False] * 11)) == ()
