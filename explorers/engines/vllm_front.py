"""vLLM's AsyncLLM in the event loop of a thread: the side of vLLM that stays in the explorer's process.

Its engine cores and workers are processes of their own, which step by themselves. What has to be exact
about tokens and versions is asked while they are paused, when every token that they sampled has arrived.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from explorers.engines.vllm_request import sampled_tokens
from explorers.transports.arrival import Source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import RequestOutput, SamplingParams
    from vllm.config import ModelConfig, VllmConfig
    from vllm.inputs import TokensPrompt
    from vllm.logprobs import PromptLogprobs
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.engine.core_client import AsyncMPClient

T = TypeVar("T")

Came: TypeAlias = "Callable[[RequestOutput | Exception], None]"
"""Takes the last output of a request, or the error that ended it; called in the front's thread."""


@dataclass(slots=True)
class _Ask:
    """A request that AsyncLLM has not answered."""

    added: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the engine core has got it, or when it was refused."""
    task: asyncio.Task[None] | None = None


class Front:
    """Starts AsyncLLM, and calls it from other threads."""

    def __init__(self, config: VllmConfig) -> None:
        """Start vLLM's processes.

        Args: config: vLLM's `VllmConfig`.
        Raises: RuntimeError when they do not start, or die at once; their log says why.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-front", daemon=True)
        self._thread.start()
        self._asks: dict[str, _Ask] = {}
        self._paused = False
        self._llm: Any = None  # AsyncLLM, once it has started
        self.replicas = int(config.parallel_config.data_parallel_size)
        """Engine cores, each with a whole copy of the model."""
        try:
            self._call(self._started(config))
            self._asked_of_cores(self._prepared())
        except BaseException as err:
            self.close()
            if isinstance(err, _dead()):
                raise RuntimeError(f"a process of vLLM died at its start: {err}") from err
            raise

    # --- called from other threads -------------------------------------------------------------------------

    def ask(self, request_id: str, prompt: TokensPrompt, parameters: SamplingParams, came: Came) -> None:
        """Start a request."""
        self._start(self._asked(request_id, prompt, parameters, came))

    def abort(self, request_ids: Sequence[str]) -> dict[str, int]:
        """End requests; returns the tokens that were sampled for each of those not finished by then.

        vLLM that has died has ended them itself.
        """
        try:
            return self._asked_of_cores(self._aborted(list(request_ids)))
        except _dead():
            return {}

    def apply(self, source: Source, *, clear_cache: bool) -> dict[str, int]:
        """Replace the weights of all workers while the engine cores are paused.

        After an error they stay paused until `resume`.

        Args: clear_cache: whether what requests have read is computed again.
        Returns: the tokens sampled by then for each request that is not finished.
        Raises: RuntimeError when a worker cannot load them. This and what follows raise vLLM's
            EngineDeadError when one of its processes dies meanwhile.
        """
        return self._asked_of_cores(self._applied(source, clear_cache))

    def resume(self) -> None:
        """Let the engine cores go on, where an error of `apply` has left them paused."""
        if self._paused:
            with suppress(_dead()):
                self._asked_of_cores(self._resumed())

    def score(
        self, prompts: Sequence[TokensPrompt], parameters: SamplingParams, name: str, replica: int
    ) -> list[PromptLogprobs]:
        """vLLM's prompt logprobs of each prompt, by one of the engine cores. `name`: of these requests."""
        return self._asked_of_cores(self._scored(prompts, parameters, name, replica))

    def seed(self, seed: int) -> None:
        """Seed the sampling of all engine cores, each in its own way."""
        self._asked_of_cores(self._llm.collective_rpc("rft_seed", args=(seed,)))

    def sleep(self, level: int) -> None:
        """Pause the engine cores and free their memory as vLLM's sleep level says."""
        self._asked_of_cores(self._llm.sleep(level=level, mode="wait"))

    def wake(self) -> None:
        """Give the engine cores their memory back and let them go on."""
        self._asked_of_cores(self._llm.wake_up())

    def give_tokenizer(self, tokenizer: Callable[[], PreTrainedTokenizerBase]) -> None:
        """Give vLLM what it finds stop strings with, if it has none."""
        if self._llm.output_processor.tokenizer is None:
            self._llm.output_processor.tokenizer = tokenizer()

    @property
    def config(self) -> ModelConfig:
        """vLLM's configuration of the model."""
        return self._llm.model_config

    def close(self) -> None:
        """End vLLM's processes; idempotent."""
        if self._loop.is_closed():
            return
        self._call(self._shut_down())
        self._end_loop()

    # --- in the front's loop -------------------------------------------------------------------------------

    async def _started(self, config: VllmConfig) -> None:
        from vllm.v1.engine.async_llm import AsyncLLM

        self._llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
        self._outputs = _Outputs(self._llm.engine_core)  # before the reader's first turn

    async def _prepared(self) -> None:
        resources = self._llm.engine_core.resources
        started = [one.pid for one in resources.engine_manager.processes]
        if resources.coordinator is not None:
            started.append(resources.coordinator.proc.pid)
        await self._llm.collective_rpc("rft_end_with", args=(os.getpid(), started))
        await self._llm.collective_rpc("rft_join_stages")

    async def _asked(
        self, request_id: str, prompt: TokensPrompt, parameters: SamplingParams, came: Came
    ) -> None:
        ask = self._asks[request_id] = _Ask(task=asyncio.current_task())
        try:
            queue = await self._llm.add_request(request_id, prompt, parameters)
            ask.added.set()
            found = await queue.get()
        except Exception as err:  # noqa: BLE001 - any error of vLLM is passed to the caller
            found = err
        finally:
            ask.added.set()
            self._asks.pop(request_id, None)
        came(found)

    async def _aborted(self, request_ids: list[str]) -> dict[str, int]:
        await self._all_added()
        counts = sampled_tokens(self._llm)
        await self._llm.abort(request_ids)
        return {name: counts[name] for name in request_ids if name in counts}

    async def _applied(self, source: Source, clear_cache: bool) -> dict[str, int]:
        await self._all_added()
        self._paused = True
        await self._llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=clear_cache)
        await self._outputs.processed()
        counts = sampled_tokens(self._llm)
        answers = await self._llm.collective_rpc("rft_try_weights", args=(dict(source),))
        problems = [answer for answer in answers if answer]
        if problems:
            raise RuntimeError(f"{len(problems)} of {len(answers)} workers: {problems[0]}")
        await self._resumed()
        return counts

    async def _resumed(self) -> None:
        self._paused = False
        await self._llm.resume_generation()

    async def _scored(
        self, prompts: Sequence[TokensPrompt], parameters: SamplingParams, name: str, replica: int
    ) -> list[PromptLogprobs]:
        queues = [
            await self._llm.add_request(f"{name}-{n}", one, parameters, data_parallel_rank=replica)
            for n, one in enumerate(prompts)
        ]
        return [(await queue.get()).prompt_logprobs for queue in queues]

    async def _all_added(self) -> None:
        """Wait until the engine cores have every request: what is sent to them is read in order."""
        for ask in list(self._asks.values()):
            await ask.added.wait()

    async def _shut_down(self) -> None:
        waiting = [ask.task for ask in self._asks.values() if ask.task is not None]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        if self._llm is not None:
            self._llm.shutdown()

    def _asked_of_cores(self, work: Coroutine[object, None, T]) -> T:
        return self._call(self._while_alive(work))

    async def _while_alive(self, work: Coroutine[object, None, T]) -> T:
        """Await `work` for as long as vLLM lives.

        Raises: EngineDeadError when vLLM dies first; it never ends the calls that it has not answered.
        """
        working = asyncio.ensure_future(work)
        reading = self._llm.engine_core.resources.output_queue_task  # ends with vLLM
        await asyncio.wait((working, reading), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))
            raise _dead()
        return working.result()

    def _call(self, work: Coroutine[object, None, T]) -> T:
        return self._start(work).result()

    def _start(self, work: Coroutine[object, None, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _end_loop(self) -> None:
        self._call(_tasks_ended())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Outputs:
    """Knows whether AsyncLLM has processed every output that arrived from the engine cores.

    An engine core sends its outputs and its answers over one socket, in order. So all outputs of before a
    call are processed when the queue between them is empty and its reader waits for more.
    """

    def __init__(self, core: AsyncMPClient) -> None:
        """`core`: AsyncLLM's client of its engine cores."""
        self._core = core
        self._next = core.get_output_async
        self._reads = False
        core.get_output_async = self._read

    async def _read(self) -> EngineCoreOutputs:
        self._reads = True
        try:
            return await self._next()
        finally:
            self._reads = False

    async def processed(self) -> None:
        """Wait until that is so."""
        while self._core.outputs_queue.qsize() or not self._reads:
            await asyncio.sleep(0.001)


async def _tasks_ended() -> None:
    """Cancel what vLLM has left in the loop."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _dead() -> type[Exception]:
    from vllm.v1.engine.exceptions import EngineDeadError

    dead: type[Exception] = EngineDeadError
    return dead
