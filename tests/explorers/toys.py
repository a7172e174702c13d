"""Small engines, workflows and rewards that misbehave on request; imported by name, as a recipe would."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from explorers.ledger import note_unfinished
from rft_data.core.engine import Completion, Engine, Sampling
from rft_data.core.errors import EngineError, ParityError
from rft_data.core.rows import Experience, Task, WeightRef, experience_id_of
from rft_data.core.workflow import RolloutContext, Unscored


class ScriptedEngine:
    """Serves any weights at once; a prompt that starts with HANG is never answered."""

    HANG = 99
    HUNG = 2
    """Tokens that it had sampled for a request when that was cancelled."""

    def __init__(self, model: Path, *, tokens: int = 3) -> None:
        self._tokens = tokens
        self._version: int | None = None
        self.aborted = 0
        self.closed = False

    @property
    def version(self) -> int:
        if self._version is None:
            raise ParityError("no proven weights")
        return self._version

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        version = self.version
        try:
            await (asyncio.Event().wait() if prompt_ids[0] == self.HANG else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.aborted += 1
            note_unfinished(self.HUNG)
            raise
        n = min(self._tokens, sampling.max_tokens)
        return Completion([7] * n, [-0.5] * n, "stop", [(version, 0, n)])

    def load_weights(self, ref: WeightRef) -> float:
        self._version = ref.version
        return 0.25

    async def swap_weights(self, ref: WeightRef) -> float:
        return self.load_weights(ref)

    def close(self) -> None:
        self.closed = True


class ScriptedWorkflow:
    """Member n of a task does what `metadata["script"][n]` says; the last entry goes for all beyond."""

    def __init__(self, tokenizer: Any, rewards: Any, *, pause_s: float = 0.0) -> None:
        self.rewards = rewards
        self._pause_s = pause_s
        self.tries: dict[tuple[str, int], int] = {}

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        script = task.metadata["script"]
        act = script[min(ctx.member, len(script) - 1)]
        tries = self.tries[ctx.group_id, ctx.member] = self.tries.get((ctx.group_id, ctx.member), 0) + 1
        await asyncio.sleep(self._pause_s)
        await misbehave(act, tries, engine, ctx.sampling)
        turns = 2 if act == "steps" else 1
        rows = [await self._row(task, engine, ctx, turn) for turn in range(turns)]
        if act in ("nothing", "text", "twice"):
            return {"nothing": [], "text": "rows", "twice": rows * 2}[act]  # type: ignore[return-value]
        if act == "alien":
            return [Experience("x", "rollout", ctx.run_id, task.taskset, task.task_id, ctx.group_id)]
        return rows

    async def _row(self, task: Task, engine: Engine, ctx: RolloutContext, turn: int) -> Experience:
        done = await engine.generate([5, 6], ctx.sampling)
        n = len(done.token_ids)
        bad = task.metadata["script"][min(ctx.member, len(task.metadata["script"]) - 1)] == "nan"
        return Experience(
            experience_id=experience_id_of(ctx.run_id, task.key, ctx.attempt, ctx.group_id, ctx.member, turn),
            source=ctx.source,
            run_id=ctx.run_id,
            taskset=task.taskset,
            task_id=task.task_id,
            group_id=ctx.group_id,
            attempt=ctx.attempt,
            member=ctx.member,
            turn=turn,
            token_ids=[5, 6, *done.token_ids],
            prompt_length=2,
            action_mask=[0, 0] + [1] * n,
            logprobs=[0.0, 0.0] + [float("nan") if bad else -0.5] * n,
            version_min=done.version_spans[0][0],
            version_max=done.version_spans[0][0],
            version_spans=[(done.version_spans[0][0], 2, 2 + n)],
            messages=(*task.messages, {"role": "assistant", "content": "x"}),
            prompt_messages=len(task.messages),
            completion_text="x",
            finish_reason=done.finish_reason,
            **await self.rewards.score(task, "x"),
        )


async def misbehave(act: str, tries: int, engine: Engine, sampling: Sampling) -> None:
    """What a rollout may do instead of coming home."""
    away = ConnectionError("the environment is away")
    raised: dict[str, BaseException] = {
        "fail": ZeroDivisionError("no such sum"),
        "down": away,
        "exit": SystemExit(4),
        "cancel": asyncio.CancelledError(),
        "broken": EngineError("the engine is gone"),
        **({"flaky": away} if tries == 1 else {}),
    }
    if act in raised:
        raise raised[act]
    if act == "hang":
        await engine.generate([ScriptedEngine.HANG], sampling)
    until = time.monotonic() + 2.5
    while act == "deaf" and time.monotonic() < until:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


class Act:
    """A reward that does what the completion says."""

    def __init__(self, value: float = 1.0) -> None:
        if os.environ.get("RFT_TOY_REWARD") == "away":
            raise ValueError("the model of the reward is away")
        self._value = value
        self._kept: list[bytearray] = []

    def __call__(self, task: Task, completion: str) -> Any:
        act, _, argument = completion.partition(" ")
        return getattr(self, act)(argument)

    def good(self, argument: str) -> float:
        return self._value

    def pid(self, argument: str) -> float:
        return float(os.getpid())

    def length(self, argument: str) -> float:
        return float(len(argument))

    def away(self, argument: str) -> Unscored:
        return Unscored("the judge is away")

    def returns(self, argument: str) -> Any:
        return {"nan": float("nan"), "inf": float("inf"), "none": None, "text": "1.0", "true": True}[argument]

    def raises(self, argument: str) -> NoReturn:
        raise KeyError(argument)

    def exits(self, argument: str) -> NoReturn:
        sys.exit(3)

    def prints(self, argument: str) -> float:
        print('{"value": 0.0, "seconds": 0.0}', flush=True)  # noqa: T201
        os.write(1, b'{"value": 0.0, "seconds": 0.0}\n')
        return float(len(sys.stdin.read()))

    def waits(self, argument: str) -> float:
        """Says that it has begun, and waits until it may end."""
        Path(f"{argument}.begun").touch()
        while not Path(argument).exists():
            time.sleep(0.01)
        return self._value

    def naps(self, argument: str) -> float:
        time.sleep(float(argument))
        return self._value

    def hangs(self, argument: str) -> NoReturn:
        while True:
            pass

    def hangs_in_c(self, argument: str) -> float:
        ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock
        return 0.0

    def hangs_with_child(self, argument: str) -> float:
        child = subprocess.Popen(["sleep", "600"])
        Path(argument).write_text(str(child.pid))
        return float(child.wait())

    def hangs_with_detached(self, argument: str) -> float:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        Path(argument).write_text(str(child.pid))
        return float(child.wait())

    def forks(self, argument: str) -> float:
        """Returns in two processes."""
        return 0.5 if os.fork() else 0.75

    def says(self, argument: str) -> float:
        """Writes to the socket on which its process answers."""
        os.write(int(sys.argv[1]), argument.encode() + b"\n")
        return self._value

    def crashes(self, argument: str) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(60)

    def vanishes(self, argument: str) -> NoReturn:
        os._exit(3)

    def leaks(self, argument: str) -> float:
        self._kept.append(bytearray(int(argument) << 20))
        return self._value

    def alarm(self, argument: str) -> float:
        """Signal-based time-outs need the main thread."""

        def stop(*_: object) -> NoReturn:
            raise TimeoutError

        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            time.sleep(60)
        except TimeoutError:
            return 0.5
        return 0.0


class Second(Act):
    """Another of the same."""


class SlowOnce:
    """A reward that hangs the first time it is asked, in whatever process."""

    def __init__(self, note: str) -> None:
        self._note = Path(note)

    def __call__(self, task: Task, completion: str) -> float:
        if not self._note.exists():
            self._note.touch()
            time.sleep(600)
        return 0.5


class Unbuildable:
    """A reward that cannot be made."""

    def __init__(self, how: str) -> None:
        if how == "exit":
            os._exit(5)
        raise ValueError("no model at hand")


class SlowBuffer:
    """A buffer that waits if asked to and may refuse; it keeps what it was given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[Sequence[Experience]] = []
        self.inside = self.most_inside = 0
        self.goes_on = threading.Event()
        """Cleared by who wants appends to wait."""
        self.goes_on.set()
        self._error = error

    def append(self, rows: Sequence[Experience]) -> Any:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.goes_on.wait(60)
        self.inside -= 1
        if self._error:
            raise self._error
        first = sum(map(len, self.calls))
        self.calls.append(rows)
        return Answer(tuple(range(first, first + len(rows))))

    def take(self, seqs: Sequence[int]) -> NoReturn:
        raise NotImplementedError

    def leased(self, lease: Any, pipeline_hash: str) -> NoReturn:
        raise NotImplementedError


class Answer:
    """What `append` returns."""

    def __init__(self, seqs: tuple[int | None, ...]) -> None:
        self.seqs = seqs


def task(*script: str, name: str = "t", metadata: Mapping[str, Any] | None = None) -> Task:
    """A task for `ScriptedWorkflow`."""
    prompt = ({"role": "user", "content": name},)
    return Task("toys", prompt, answer="1", metadata={"script": list(script), **(metadata or {})})
