"""One request to vLLM: what it is asked, and what the answer says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from explorers.engines.swap import Segments
from rft_data.core.engine import Completion
from rft_data.core.errors import EngineError

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.logprobs import FlatLogprobs, PromptLogprobs
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.llm_engine import LLMEngine

OnOutput: TypeAlias = "Callable[[RequestOutput | EngineError], None]"
"""Takes vLLM's outputs of a request, and the EngineError that ends it."""


@dataclass(slots=True)
class Flight:
    """A request in flight."""

    prompt_ids: list[int]
    parameters: SamplingParams | Mapping[str, object]
    """Fields of vLLM's `SamplingParams`, or such an object."""
    segments: Segments
    future: asyncio.Future[RequestOutput]
    images: Sequence[str]
    """Payload ids of the images that it shows."""
    request_id: str = ""
    on_output: OnOutput | None = None
    """Gets every output of a streamed request, and the last one of any; None: only `future` gets it."""

    def answer(self, output: RequestOutput) -> None:
        """Pass an output of vLLM on."""
        if self.on_output is not None:
            self.on_output(output)
        if output.finished and not self.future.done():
            self.future.set_result(output)

    def fail(self, failure: EngineError) -> None:
        """Pass the error on that ends the request."""
        if self.future.done():
            return
        if self.on_output is not None:
            self.on_output(failure)
            self.future.cancel()
        else:
            self.future.set_exception(failure)

    def answered_tokens(self) -> int | None:
        """Tokens of the answer, also of one on its way to a caller who was cancelled; None without one."""
        future = self.future
        if not future.done() or future.cancelled() or future.exception() is not None:
            return None
        return len(future.result().outputs[0].token_ids)

    def tokens_so_far(self, llm: LLMEngine | None) -> int:
        """Tokens of a request whose caller was cancelled; `llm`: None for an engine that was closed."""
        if (tokens := self.answered_tokens()) is not None:
            return tokens
        return 0 if llm is None else sampled_tokens(llm).get(self.request_id, 0)

    def completion(self, answer: RequestOutput, processor: str) -> Completion:
        """vLLM's answer; `processor`: hash of what made tensors of images."""
        output = answer.outputs[0]
        return Completion(
            token_ids=list(output.token_ids),
            logprobs=sampled_logprobs(output.logprobs, output.token_ids),
            finish_reason=output.finish_reason,
            version_spans=self.segments.spans(len(output.token_ids)),
            prompt_ids=list(answer.prompt_token_ids) if self.images else None,
            processor=processor if self.images else "",
        )


@dataclass(slots=True)
class Flights:
    """The requests in flight of one engine."""

    running: dict[str, Flight] = field(default_factory=dict)
    """Requests under way, by the id that vLLM has of them."""
    held: list[RequestOutput] = field(default_factory=list)
    """Outputs that are not passed on yet, in the order of the steps."""
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def new_id(self) -> str:
        """The id of another request."""
        return str(next(self._ids))

    def take(self, flight: Flight) -> None:
        """A request is in flight, under a new id."""
        flight.request_id = self.new_id()
        self.running[flight.request_id] = flight

    def leave(self, flights: Sequence[Flight]) -> list[str]:
        """Requests are not in flight any more; returns their ids."""
        request_ids = [flight.request_id for flight in flights]
        for request_id in request_ids:
            self.running.pop(request_id, None)
        return request_ids

    def cut(self, version: int, sampled: Mapping[str, int]) -> list[Flight]:
        """Another version samples from here on; returns the requests without a token yet.

        `sampled`: tokens so far of those that vLLM has not finished.
        """
        unfinished = {name: flight for name, flight in self.running.items() if name in sampled}
        for name, flight in unfinished.items():
            flight.segments.cut(version, sampled[name])
        return [flight for name, flight in unfinished.items() if not sampled[name]]

    def awaits(self, output: RequestOutput) -> bool:
        """Whether this output is waited for: the last one of a request, or any of a streamed one."""
        flight = self.running.get(output.request_id)
        return bool(output.finished) or (flight is not None and flight.on_output is not None)

    def answer(self) -> None:
        """Pass the held outputs on; a request with its last one is not in flight any more."""
        held, self.held = self.held, []
        for output in held:
            flight = self.running.get(output.request_id)
            if output.finished:
                self.running.pop(output.request_id, None)
            if flight is not None:
                flight.answer(output)

    def fail(self, failure: EngineError) -> None:
        """Pass an error on to all of them."""
        for flight in self.running.values():
            flight.fail(failure)


def sampled_tokens(llm: LLMEngine | AsyncLLM) -> dict[str, int]:
    """Tokens sampled so far, by request; others may come and go meanwhile."""
    states = list(llm.output_processor.request_states.values())
    return {state.external_req_id: state.detokenizer.num_output_tokens() for state in states}


def sampled_logprobs(found: FlatLogprobs, sampled: Sequence[int]) -> list[float]:
    """The logprob of each sampled token, where vLLM was asked for those alone.

    Raises: EngineError when vLLM's entries are of other tokens.
    """
    if found.token_ids != list(sampled):
        raise EngineError(
            f"vLLM gave logprobs of {len(found.token_ids)} tokens for a completion of {len(sampled)}, and "
            "they are not those that were sampled; install the version of vLLM that rft-data asks for."
        )
    return list(found.logprobs)


def prompt_logprobs(found: PromptLogprobs, row: Sequence[int]) -> npt.NDArray[np.float32]:
    """The logprob of each token of a prompt in vLLM's `prompt_logprobs` of it; entry 0 is 0."""
    entries = zip(found[1:], row[1:], strict=True)
    return np.array([0.0, *(entry[i].logprob for entry, i in entries)], dtype=np.float32)


def asked(
    prompt_ids: Sequence[int],
    parameters: SamplingParams | Mapping[str, object],
    salt: str,
    shown: Mapping[str, object],
) -> tuple[TokensPrompt, SamplingParams]:
    """vLLM's prompt and sampling parameters; `shown`: fields of the prompt for images."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    prompt = TokensPrompt(prompt_token_ids=list(prompt_ids), cache_salt=salt, **shown)
    if isinstance(parameters, SamplingParams):
        return prompt, parameters.clone()
    return prompt, SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **parameters)
