"""Asynchronous rewards in one child process that runs many calls at once, each with its deadline.

The child stops a call at its deadline. One that does not answer then (code that blocks its event loop) is
killed and started again: every call under way is unscored, as a failure that is tried again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress

from explorers.rewards.contract import Judged
from explorers.rewards.reward_calls import Scored, decode_answer, encode_call, encode_line
from explorers.rewards.reward_process import RewardProcess, foreign
from rft_data.core.errors import RftError
from rft_data.core.rows import Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

_TOGETHER = 256
"""Most calls under way at a time."""
_GRACE_S = 2.0
"""How long after its deadline the child may still say so."""
_LONGEST = 1 << 30
_END_S = 5.0


class _Running:
    """A child at work: its connection, and the calls it has not answered."""

    def __init__(self, process: RewardProcess, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self.writer = writer
        self.waiting: dict[int, asyncio.Future[Scored]] = {}
        self.reading: asyncio.Task[None] | None = None


class RewardLane:
    """One child, served by an event loop in a thread of its own."""

    def __init__(
        self,
        components: Sequence[Mapping[str, object]],
        *,
        deadlines_s: Mapping[str, float],
        memory_bytes: int,
    ) -> None:
        """Start the child and wait until its rewards are built.

        Args: components, memory_bytes: as `RewardProcess` takes them; deadlines_s: for one call, by name.
        Raises: what building a reward raised.
        """
        self._components = components
        self._deadlines_s = deadlines_s
        self._memory_bytes = memory_bytes
        self._numbers = itertools.count(1)
        self._starts = 0
        self._child: _Running | None = None
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(_TOGETHER)
        self._starting = asyncio.Lock()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="reward-lane", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._alive(), self._loop).result()
        except BaseException:
            self.close()
            raise

    @property
    def restarts(self) -> int:
        """How often the child had to be started again."""
        return max(0, self._starts - 1)

    def submit(self, reward: str, task: Task, judged: Judged) -> Future[Scored]:
        """Have one of the rewards judge a completion, a rollout or a group; cancelling the future ends it.

        The future raises RftError only when the child cannot be started again or the lane is closed.
        """
        with self._lock:  # so that no call comes after those that `close` waits for
            if self._closed:
                raise RftError(f"reward '{reward}' was asked for after the explorer was closed.")
            return asyncio.run_coroutine_threadsafe(self._call(reward, task, judged), self._loop)

    def close(self) -> None:
        """End the child at once; idempotent. Calls under way fail with RftError."""
        with self._lock:
            self._closed = True
        if not self._loop.is_running():
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)

    async def _call(self, reward: str, task: Task, judged: Judged) -> Scored:
        async with self._slots:
            child = await self._alive()
            number, limit_s = next(self._numbers), self._deadlines_s[reward]
            answer = child.waiting[number] = self._loop.create_future()
            child.writer.write(encode_call(number, reward, task, judged))
            try:
                return await asyncio.wait_for(asyncio.shield(answer), limit_s + _GRACE_S)
            except TimeoutError:
                why = f"took longer than {limit_s:g} s and was stopped"
                self._lose(child, "was stopped together with a call that blocked its process")
                return Scored((Unscored(why, UnscoredCause.TIMEOUT),), limit_s)
            except asyncio.CancelledError:
                if child is self._child and not self._closed:
                    child.writer.write(encode_line({"cancel": number}))
                raise
            finally:
                child.waiting.pop(number, None)

    async def _alive(self) -> _Running:
        """The child, started again if it was lost; rewards are built meanwhile, and nothing else runs."""
        async with self._starting:
            if self._closed:
                raise RftError("the explorer was closed while rewards were being computed.")
            if self._child is None:
                process = RewardProcess(self._components, self._memory_bytes, together_s=self._deadlines_s)
                reader, writer = await asyncio.open_connection(sock=process.socket.dup(), limit=_LONGEST)
                self._child = _Running(process, writer)
                self._child.reading = self._loop.create_task(self._read(self._child, reader))
                self._starts += 1
            return self._child

    async def _read(self, child: _Running, reader: asyncio.StreamReader) -> None:
        """Hand out answers until the child ends or says something that is no answer."""
        while line := await reader.readline():
            number, scored = _answer(line)
            if scored is None:
                self._lose(child, foreign(line.decode("utf-8", "replace")))
                return
            waiting = child.waiting.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_result(scored)
        self._lose(child, child.process.ending())

    def _lose(self, child: _Running, why: str) -> None:
        """Give a child up, and with it every call under way."""
        if child is self._child:
            self._child = None
        for waiting in child.waiting.values():
            if not waiting.done():
                if self._closed:
                    waiting.set_exception(RftError("the explorer was closed while rewards were computed."))
                else:
                    waiting.set_result(Scored((Unscored(why, UnscoredCause.INFRASTRUCTURE),), 0.0))
        child.writer.close()
        child.process.close()

    async def _stop(self) -> None:
        """Give the child up, and wait until every call has told whoever asked."""
        child = self._child
        if child is not None:
            if child.reading is not None:
                child.reading.cancel()
            self._lose(child, "")
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        if calls:
            await asyncio.wait(calls)


def _answer(line: bytes) -> tuple[int, Scored | None]:
    """The number and content of an answer; None where it has not the form of one."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return 0, None
    if not isinstance(answer, dict) or not isinstance(answer.get("number"), int):
        return 0, None
    return answer["number"], decode_answer(answer)
