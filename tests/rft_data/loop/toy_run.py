"""Small honest roles for tests of the loop: rows, versions and checkpoints are real, the model is not.

Policy "weights" are the list of what was trained. Sampled tokens are a hash of them, of the task and of the
place in a random stream that each load of weights starts again. Two runs sample the same only if they trained
the same and explored the same since.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from rft_data.core.errors import EngineError, TrainingError
from rft_data.core.files import flush, write_manifest
from rft_data.core.groups import Assignment, Lease, Played, Ticket
from rft_data.core.rows import FileFacts, StepReport, Task, WeightRef
from tests.rft_data.conftest import experience_id_of, make_experience

SIZE = 2
TASKS = [Task("sums", ({"role": "user", "content": f"{i}+1="},), str(i + 1)) for i in range(24)]
OPERATORS = [{"reward_range_filter": {}}, {"reward_variance_filter": {}}, {"grpo_advantage_mapper": {}}]


def reward_of(rule: str, task: Task, member: int, drawn: bytes) -> float | None:
    """`mixed`: every third task has one outcome; `one`: only the first task has two; `same`: none has;
    `two`: each has; `late`: of every other task nobody knows yet; `drawn`: what was sampled decides.

    With `broken` an explorer never gets so far.
    """
    if rule == "drawn":
        return float(drawn[0] % 2)
    if rule == "late" and int(task.answer or 0) % 2:
        return None
    if rule in ("two", "late"):
        return float(member == 0)
    if rule == "mixed":
        return float(member == 0 or int(task.answer or 0) % 3 == 0)
    return float(rule == "same" or (member == 0 and task == TASKS[0]))


class ToyExplorer:
    """Plays groups without a model; fails on every fifth task if told to."""

    def __init__(
        self,
        buffer: Any,
        run_id: str,
        attempt: int,
        rule: str,
        failing: bool,
        pause_s: float,
        seed: int,
        killed: str = "",
    ) -> None:
        self._buffer = buffer
        self._run_id = run_id
        self._attempt = attempt
        self._rule = rule
        self._failing = failing
        self._pause_s = pause_s
        self._seed = seed
        self._killed = Path(killed) if killed else None
        self._ref: WeightRef | None = None
        self._weights = ""
        self._drawn = 0
        self._asleep = False

    async def load_weights(self, ref: WeightRef) -> float:
        assert not self._asleep
        if self._ref is not None and ref.version <= self._ref.version:
            raise EngineError(f"version {ref.version} after {self._ref.version}")
        self._weights = (Path(ref.path) / "trained.txt").read_text()
        self._ref = ref
        self._drawn = 0
        return 0.0

    async def sleep(self) -> None:
        self._asleep = True

    async def wake(self) -> None:
        self._asleep = False

    async def pid(self) -> int:
        return os.getpid()

    async def explore(self, assignments: list[Assignment]) -> list[Played]:
        await asyncio.sleep(self._pause_s)
        assert not self._asleep
        if self._rule == "broken":
            raise EngineError("the engine is gone")
        return [self._play(assignment) for assignment in assignments]

    async def evaluate(self, tasks: list[Task], label: str, samples: int) -> list[int]:
        """Stores task after task; with `killed` it writes its process id there after the first, and waits."""
        stored: list[int] = []
        for task in tasks:
            assignment = Assignment(Ticket(f"{label}-{task.task_id}", 0, 0), task)
            rows = [replace(self._row(assignment, n), source="eval") for n in range(samples)]
            stored += self._buffer.append(rows).seqs
            if self._killed is not None and not self._killed.exists():
                self._killed.with_suffix(".draft").write_text(str(os.getpid()))
                self._killed.with_suffix(".draft").rename(self._killed)
                await asyncio.Event().wait()
        return stored

    def _play(self, assignment: Assignment) -> Played:
        ticket, task = assignment.ticket, assignment.task
        failed = self._failing and int(task.answer or 0) % 5 == 4
        rows = [self._row(assignment, member) for member in range(1 if failed else SIZE)]
        done = self._buffer.append(rows)
        outcome, error = ("failed", "1 of 2: boom") if failed else ("arrived", "")
        return Played(ticket, task.key, outcome, tuple(done.seqs), len(rows), error)

    def _row(self, assignment: Assignment, member: int) -> Any:
        assert self._ref is not None
        ticket, task, version = assignment.ticket, assignment.task, self._ref.version
        self._drawn += 1
        stream = f"{self._weights}/{self._seed}/{self._drawn}/{task.task_id}/{member}"
        sampled = hashlib.sha256(stream.encode()).digest()[:2]
        return make_experience(
            experience_id=experience_id_of(self._run_id, task.key, self._attempt, ticket.group_id, member),
            run_id=self._run_id,
            taskset=task.taskset,
            task_id=task.task_id,
            group_id=ticket.group_id,
            attempt=self._attempt,
            member=member,
            token_ids=[1, 2, *sampled],
            reward=reward_of(self._rule, task, member, sampled),
            version_min=version,
            version_max=version,
            version_spans=((version, 2, 4),),
        )


def explorer_role(
    buffer: Any,
    run_id: str = "run",
    attempt: int = 0,
    rule: str = "mixed",
    failing: bool = False,
    pause_s: float = 0.0,
    seed: int = 0,
    killed: str = "",
) -> ToyExplorer:
    """Factory."""
    return ToyExplorer(buffer, run_id, attempt, rule, failing, pause_s, seed, killed)


class ToyTrainer:
    """Remembers what it trained on; its checkpoint is that memory."""

    def __init__(
        self, buffer: Any, root: str, pipeline_hash: str, resume_from: str | None, poisoned: int
    ) -> None:
        self._buffer = buffer
        self._root = Path(root)
        self._pipeline_hash = pipeline_hash
        self._poisoned = poisoned
        self.trained: list[str] = []
        self._asleep = False
        if resume_from is not None:
            self.trained = (Path(resume_from) / "trained.txt").read_text().splitlines()

    def step(self, lease: Lease, checkpoint: bool) -> StepReport:
        assert not self._asleep
        table = self._buffer.leased(lease, self._pipeline_hash).table
        if len(self.trained) == self._poisoned:
            raise TrainingError("the loss is nan")
        content = [table.column(name).to_pylist() for name in ("token_ids", "advantage")]
        self.trained.append(hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16])
        files = self.checkpoint() if checkpoint else {}
        return StepReport({"reward": 1.0, "completions/mean_length": 2.0}, files=files)

    def sleep(self) -> None:
        self._asleep = True

    def wake(self) -> None:
        self._asleep = False

    def checkpoint(self) -> dict[str, FileFacts]:
        assert not self._asleep
        folder = self._root / f"checkpoint-{len(self.trained)}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trained.txt").write_text("\n".join(self.trained))
        return flush(folder)

    def save_weights(self, directory: str, header: dict[str, Any]) -> str:
        assert not self._asleep
        (Path(directory) / "trained.txt").write_text("\n".join(self.trained))
        return write_manifest(Path(directory), header)


def trainer_role(
    buffer: Any, root: str, pipeline_hash: str, resume_from: str | None = None, poisoned: int = -1
) -> ToyTrainer:
    """Factory."""
    return ToyTrainer(buffer, root, pipeline_hash, resume_from, poisoned)
