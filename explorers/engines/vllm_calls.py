"""The calls of one vLLM engine, one after another: in the event loop, or in a thread of its own beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from explorers.engines.isolation import RandomStream
from explorers.engines.vllm_process import ONE_AT_A_TIME
from explorers.engines.vllm_request import asked
from rft_data.core.errors import EngineError

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

T = TypeVar("T")


def engine_closed() -> EngineError:
    """The error of a call of an engine that was closed."""
    return EngineError("the engine was closed; make a new one.")


class EngineCalls:
    """Steps, additions and abortions, in the order in which they are asked for.

    In a thread of their own they leave the event loop free for other work, such as a server's. Such an engine
    changes torch's random generators at any time, so no trainer may be in its process.
    """

    def __init__(self, llm: LLMEngine, random: RandomStream, *, own_thread: bool) -> None:
        """`llm`: vLLM's `LLMEngine`, which draws from `random`."""
        self._llm = llm
        self._random = random
        self._pool = ThreadPoolExecutor(1, "vllm") if own_thread else None

    async def call(self, act: Callable[[], T]) -> T:
        """Call now, or after the calls before it; returns or raises what `act` does.

        Raises: EngineError for a call that `close` has given up.
        """
        if self._pool is None:
            return act()
        try:
            called = self._pool.submit(act)
        except RuntimeError as err:  # closed
            raise engine_closed() from err
        try:
            return await asyncio.wrap_future(called)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():  # the call was cancelled, and not its caller
                raise engine_closed() from None
            raise

    def later(self, act: Callable[[], object]) -> None:
        """The same without waiting for the end."""
        if self._pool is None:
            act()
        else:
            with suppress(RuntimeError):  # closed: there is nothing to end any more
                self._pool.submit(act)

    def settle(self) -> None:
        """Wait until all calls so far are done; the event loop stands still."""
        if self._pool is not None:
            self._pool.submit(int).result()

    def close(self) -> None:
        """Take no more calls, and wait for the one that runs; those that have not begun are given up."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    # --- the calls -----------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        prompt_ids: Sequence[int],
        parameters: SamplingParams | Mapping[str, object],
        salt: str,
        shown: Mapping[str, object],
    ) -> None:
        """Add a request; arguments are those of `asked`."""
        prompt, params = asked(prompt_ids, parameters, salt, shown)
        with ONE_AT_A_TIME:
            self._llm.add_request(name, prompt, params)

    def abort(self, names: Sequence[str]) -> None:
        """End requests; those that vLLM does not know are passed over."""
        with ONE_AT_A_TIME:
            self._llm.abort_request(list(names))

    def step(self) -> list[RequestOutput]:
        """One step of every request; returns vLLM's outputs."""
        with ONE_AT_A_TIME, self._random.active():
            found: list[RequestOutput] = self._llm.step()
            return found
