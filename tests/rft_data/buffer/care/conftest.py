"""A small real buffer with every kind of row in it, made once and copied for each test that damages it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.care import examine, salvage
from rft_data.buffer.care.folder import TableFolder
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import Experience, Task, TaskKey, experience_id_of, now
from rft_data.core.schema import ANNOTATIONS
from rft_data.sampler.ledger import Ledger

RUN, TASK, PIPELINE = "run", TaskKey("arith", "t0"), "pipeline"
STEPS, GROUP = 6, 4
"""Each step of the run that made the buffer: two groups of four, one append."""


def make_row(number: int, **changes: object) -> Experience:
    """Member `number % 4` of group `number // 4`; its content depends on the number."""
    group, tokens = group_of(number), 12 + number % 9
    fields = {
        "experience_id": experience_id_of(RUN, TASK, 0, group, number % GROUP),
        "source": "rollout",
        "run_id": RUN,
        "taskset": TASK.taskset,
        "task_id": TASK.task_id,
        "group_id": group,
        "member": number % GROUP,
        "token_ids": [number * 31 + k for k in range(tokens)],
        "prompt_length": 2,
        "action_mask": [0, 0] + [1] * (tokens - 2),
        "logprobs": [0.0, 0.0] + [-0.01 * number - 0.125 * k for k in range(tokens - 2)],
        "version_min": 3,
        "version_max": 3,
        "version_spans": ((3, 2, tokens),),
        "messages": ({"role": "user", "content": f"{number}+1="},),
        "completion_text": f"the answer is {number + 1}",
        "finish_reason": "stop",
        "reward": float(number % 2),
        "reward_parts": {"exact": 1.0},
        "sampling": {"temperature": 1.0},
    }
    return Experience(**{**fields, **changes})


def group_of(number: int) -> str:
    """The group that row `number` belongs to."""
    return f"{RUN}/0-{number // GROUP:08d}"


def annotations_of(seqs: list[int], rows: list[Experience]) -> pa.Table:
    """A kept verdict for each row."""
    common = {"pipeline_hash": PIPELINE, "verdict": "kept", "dropped_by": "", "reason": "", "stats": "{}"}
    values = [
        {"seq": seq, "experience_id": row.experience_id, "advantage": [0.5], "shaped_reward": None, **common}
        for seq, row in zip(seqs, rows, strict=True)
    ]
    return pa.Table.from_pylist([{**value, "created_at": now()} for value in values], schema=ANNOTATIONS)


def group_result(group: int) -> GroupResult:
    """What came of a group whose rows are numbered from `4 * group`."""
    seqs = tuple(range(group * GROUP, (group + 1) * GROUP))
    ticket = Ticket(group_of(seqs[0]), group, 3)
    return GroupResult(ticket, TASK, (0.0, 1.0, 0.0, 1.0), "arrived", 3, seqs)


def group_row(result: GroupResult) -> dict[str, object]:
    """The row of `groups` for it."""
    return {
        "group_id": result.ticket.group_id,
        "run_id": RUN,
        "ordinal": result.ticket.ordinal,
        "round": result.ticket.round,
        "attempt": 0,
        "taskset": TASK.taskset,
        "task_id": TASK.task_id,
        "version": 3,
        "version_min": 3,
        "outcome": "arrived",
        "rewards": list(result.rewards),
        "seqs": list(result.seqs),
        "dropped_by": "",
        "error": "",
    }


def fill(buffer: Buffer) -> None:
    """Six steps explored and judged, four of them leased, two of these consumed."""
    buffer.add_tasks([Task("arith", ({"role": "user", "content": "1+1="},), "2")])
    image = buffer.add_payload(b"not really a picture", "image/png")
    for step in range(STEPS):
        changes = {"payloads": (image,)} if step == STEPS - 1 else {}
        rows = [make_row(number, **changes) for number in range(step * 2 * GROUP, (step + 1) * 2 * GROUP)]
        stored = buffer.append(rows)
        buffer.annotate(annotations_of(list(stored.seqs), rows))
        buffer.add_rows("groups", [group_row(group_result(group)) for group in (2 * step, 2 * step + 1)])
    ledger = Ledger(buffer, RUN, 0)
    ledger.attach("trainer")
    for step in range(4):
        ledger.grant("trainer", step, 3, [group_result(2 * step), group_result(2 * step + 1)])
    ledger.consume("trainer", 2)
    metric = {"run_id": RUN, "role": "run", "step": 0, "key": "reward", "value": 0.5}
    buffer.add_rows("metrics", [metric])


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undamaged buffer; do not touch."""
    root = tmp_path_factory.mktemp("care") / "buffer"
    with Buffer(root) as buffer:
        fill(buffer)
    return root


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(pristine, tmp_path / "buffer"))


@pytest.fixture
def decoded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are decoded in this process only, for damage that kills none: a child costs a second each time.

    The tests of flipped bits and of the commands have the child.
    """
    for module in (examine, salvage):
        monkeypatch.setattr(module, "lethal", lambda parts: set())


def newest_manifest(root: Path, table: str, back: int = 0) -> Path:
    """The manifest of the newest version of a table, or of one `back` versions before it."""
    return TableFolder(root, table).manifests[back].path


def data_file(root: Path, table: str, place: int = 0) -> Path:
    """The data file of the fragment at `place`."""
    folder = TableFolder(root, table)
    fragment = list(folder.fragments.values())[place]
    return folder.path / "data" / fragment.metadata.files[0].path


def stored(root: Path, table: str) -> pa.Table:
    """The whole of a table."""
    head = TableFolder(root, table).head
    assert head is not None
    rows: pa.Table = head.dataset.to_table()
    return rows
