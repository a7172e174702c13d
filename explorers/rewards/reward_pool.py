"""Rewards computed by a few killable child processes, with a deadline for each call.

A call that hangs, ends its child or gets an answer not its own is `Unscored`; no other call is lost, and the
child is started again.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from explorers.rewards.contract import Judged, RewardKind
from explorers.rewards.reward_calls import Scored, encode_call
from explorers.rewards.reward_process import ChildLost, RewardProcess
from rft_data.core.errors import RftError
from rft_data.core.rows import Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

_AHEAD = 64
"""Most calls sent to a child at a time."""
_AHEAD_S = 0.05
"""Seconds of work to send ahead: many quick calls at a time, slow ones one by one to all children."""
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class _Call:
    number: int
    line: bytes
    future: Future[Scored] = field(default_factory=Future)


@dataclass(slots=True)
class _Pace:
    """The moving average of seconds per call, and how many calls to send ahead at it."""

    seconds: float = _AHEAD_S

    @property
    def ahead(self) -> int:
        return max(1, min(_AHEAD, int(_AHEAD_S / max(self.seconds, 1e-6))))

    def took(self, scored: Scored) -> Scored:
        self.seconds += 0.1 * (scored.seconds - self.seconds)
        return scored


class RewardPool:
    """A fixed number of children; each is served, and started again, by a thread of its own."""

    def __init__(
        self,
        components: Sequence[Mapping[str, object]],
        *,
        processes: int,
        deadline_s: float,
        memory_bytes: int,
    ) -> None:
        """Start the children and wait until their rewards are built.

        Args: components, memory_bytes: as `RewardProcess` takes them; deadline_s: for each call.
        Raises: what building a reward raised.
        """
        self._components = components
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._numbers = itertools.count(1)
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._children: set[RewardProcess] = set()
        self._closed = False
        self._restarts = 0
        self._kinds: Mapping[str, RewardKind] = {}
        ready: list[Future[None]] = [Future() for _ in range(processes)]
        self._threads = [threading.Thread(target=self._work, args=(one,), daemon=True) for one in ready]
        for thread in self._threads:
            thread.start()
        try:
            for one in ready:
                one.result()
        except BaseException:
            self.close()
            raise

    @property
    def restarts(self) -> int:
        """How often a child had to be started again."""
        return self._restarts

    @property
    def kinds(self) -> Mapping[str, RewardKind]:
        """How each reward is called, by name."""
        return self._kinds

    def submit(self, reward: str, task: Task, judged: Judged) -> Future[Scored]:
        """Have one of the rewards judge a completion, a rollout or a group.

        The future raises RftError only when a child cannot be started again or the pool is closed.
        """
        number = next(self._numbers)
        call = _Call(number, encode_call(number, reward, task, judged))
        with self._lock:  # so that no call comes after the marks that `close` puts at the end
            if self._closed:
                raise RftError(f"reward '{reward}' was asked for after the explorer was closed.")
            self._calls.put(call)
        return call.future

    def close(self) -> None:
        """End the children at once; idempotent. Calls under way fail with RftError."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        for _ in self._threads:
            self._calls.put(None)
        for child in children:
            child.kill()
        for thread in self._threads:
            thread.join(_END_S)

    def _work(self, ready: Future[None]) -> None:
        """Serve calls until the pool is closed."""
        child: RewardProcess | None = None
        try:
            child = self._start()
        except Exception as err:  # noqa: BLE001 - any error goes to the waiting caller
            ready.set_exception(err)
            return
        ready.set_result(None)
        pace = _Pace()
        while calls := self._next(pace.ahead):
            while calls:
                child = self._serve(child, calls, pace)
        if child is not None:
            self._end(child)

    def _next(self, most: int) -> deque[_Call]:
        """The next calls, one at least; none when the pool is closed."""
        found: deque[_Call] = deque()
        call = self._calls.get()
        while call is not None:
            if call.future.set_running_or_notify_cancel():
                found.append(call)
            if len(found) == most:
                return found
            try:
                call = self._calls.get(block=not found)
            except queue.Empty:
                return found
        if found:
            self._calls.put(None)
        return found

    def _serve(self, child: RewardProcess | None, calls: deque[_Call], pace: _Pace) -> RewardProcess | None:
        """Answer calls, from the left, until all are or the child is lost; returns the child if it lives."""
        try:
            child = child or self._start(again=True)
            for scored in child.ask([(call.number, call.line) for call in calls], self._deadline_s):
                calls.popleft().future.set_result(pace.took(scored))
                if scored.spent:
                    self._end(child)
                    return None
        except ChildLost as lost:
            if not self._closed:
                cause = UnscoredCause.TIMEOUT if lost.late else UnscoredCause.INFRASTRUCTURE
                unscored = Scored((Unscored(str(lost), cause),), lost.seconds)
                calls.popleft().future.set_result(pace.took(unscored))
        except Exception as err:  # noqa: BLE001 - any error goes to the waiting callers
            for call in calls:
                call.future.set_exception(err)
            calls.clear()
        else:
            return child
        if child is not None:
            self._end(child)
        return None

    def _start(self, *, again: bool = False) -> RewardProcess:
        if not self._closed:
            child = RewardProcess(self._components, self._memory_bytes)
            with self._lock:
                self._restarts += again
                self._kinds = child.kinds
                if not self._closed:
                    self._children.add(child)
                    return child
            child.close()
        raise RftError("the explorer was closed while rewards were being computed.")

    def _end(self, child: RewardProcess) -> None:
        with self._lock:
            self._children.discard(child)
        child.close()
