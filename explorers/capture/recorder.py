"""The engine as vLLM's OpenAI server sees it: it samples with the run's own engine and records every choice.

Capture happens here and not in the responses, because some routes of vLLM return no token ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from explorers.capture.rendered import Observed
from explorers.capture.trajectory import ASKED, Asked
from explorers.conversations.turns import Turn
from explorers.engines.vllm_engine import VllmEngine
from explorers.engines.vllm_request import Flight
from explorers.ledger import RequestCost
from rft_data.core.errors import EngineError
from rft_data.core.words import TemplatePolicy

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.inputs import TokensInput

Metering: TypeAlias = Callable[[], AbstractContextManager[RequestCost]]
"""Meters the sampling in a block, which says its tokens."""


@contextmanager
def unmetered() -> Iterator[RequestCost]:
    """Meters nothing."""
    yield RequestCost()


@dataclass(slots=True)
class _Choice:
    """One choice of a request."""

    number: int
    turn: Turn
    flight: Flight | None = None
    done: bool = False


class Recorder:
    """An `EngineClient` of vLLM that records every answer; its engine was made with `texts`."""

    def __init__(self, engine: VllmEngine, metering: Metering = unmetered) -> None:
        """`engine`: steps in the event loop that the requests are answered in."""
        self._engine = engine
        self._metering = metering
        llm = engine.llm
        self.vllm_config = llm.vllm_config
        self.model_config = llm.model_config
        self.renderer = Observed(llm.renderer)
        self.input_processor = llm.input_processor
        self._llm = llm

    async def generate(
        self, prompt: TokensInput, sampling_params: SamplingParams, request_id: str, **_: object
    ) -> AsyncGenerator[RequestOutput, None]:
        """Sample and record the choices of a request; yields vLLM's outputs, as its own engine would.

        A request that is given up leaves no turn. What the client did not ask for is not in the outputs.
        """
        asked = ASKED.get()
        if asked is None:
            raise EngineError("a request came that belongs to no trajectory; this is a defect.")
        try:
            with self._metering() as cost:
                async for output in self._turns(_prompt_ids(prompt), sampling_params, asked, cost):
                    yield output
        except Exception as err:
            asked.trajectory.failed(err)
            raise

    async def _turns(
        self, ids: list[int], params: SamplingParams, asked: Asked, cost: RequestCost
    ) -> AsyncGenerator[RequestOutput, None]:
        """Begin a request's turns, and end them: those that were not sampled whole leave no trace."""
        if asked.strict and params.structured_outputs is None:
            raise ValueError(
                "'tools.strict' cannot be honoured: the tool parser has no grammar; leave it out."
            )
        trajectory, most = asked.trajectory, _most(params, asked)
        begun = trajectory.begin(ids, asked, params.n, most)
        choices = [_Choice(number, turn) for number, turn in enumerate(begun)]
        try:
            async for output in self._sampled(choices, params, asked, most):
                if trajectory.policy is TemplatePolicy.KEEP_THINKING and not asked.ids:
                    output.prompt_token_ids = ids  # else it looks as if thinking were over
                yield output
        finally:
            cost.tokens = sum(len(choice.turn.sampled) for choice in choices)
            trajectory.settle(params.n * most)
            for choice in choices:
                if not choice.done:
                    self._give_up(choice, asked)

    async def _sampled(
        self, choices: Sequence[_Choice], params: SamplingParams, asked: Asked, most: int
    ) -> AsyncGenerator[RequestOutput, None]:
        """vLLM's outputs of all choices; those of a request that is not streamed come as one."""
        outputs: asyncio.Queue[tuple[_Choice, RequestOutput | EngineError]] = asyncio.Queue()
        ours = _recorded(params, asked, most, self._engine.end_ids)
        for choice in choices:
            choice.flight = await self._engine.start(
                choice.turn.asked_ids, ours, on_output=partial(_put, outputs, choice)
            )
        whole: dict[int, RequestOutput] = {}
        while not all(choice.done for choice in choices):
            choice, output = await outputs.get()
            if isinstance(output, EngineError):
                raise output
            self._record(choice, output, params, asked)
            output.outputs[0].index = choice.number
            if _streams(params):
                output.finished = all(one.done for one in choices)
                yield output
            else:
                whole[choice.number] = output
        if whole:
            first = whole[0]
            first.outputs = [whole[number].outputs[0] for number in sorted(whole)]
            yield first

    def _record(self, choice: _Choice, output: RequestOutput, params: SamplingParams, asked: Asked) -> None:
        """Add what was sampled to the turn, and take out of the output what the client did not ask for."""
        said, turn = output.outputs[0], choice.turn
        ids = list(said.token_ids)
        turn.sampled += ids
        turn.logprobs += [entry[i].logprob for entry, i in zip(said.logprobs or (), ids, strict=True)]
        if params.logprobs is None:
            said.logprobs, said.cumulative_logprob = None, None
        if output.finished and choice.flight is not None:
            choice.done = True
            spans = choice.flight.segments.spans(len(turn.sampled))
            turn.constrained = params.structured_outputs is not None
            asked.trajectory.constrained += turn.constrained
            stops = (*(params.stop or ()), *asked.trajectory.sampling.stop)
            asked.trajectory.finish(turn, said.finish_reason, spans, asked, stops)

    def _give_up(self, choice: _Choice, asked: Asked) -> None:
        if choice.flight is not None:
            self._engine.give_up(choice.flight)
        asked.trajectory.abort(choice.turn)

    # --- what else vLLM's server asks of an engine ---------------------------------------------------------

    @property
    def errored(self) -> bool:
        """Whether it serves nothing."""
        return self.is_stopped

    @property
    def is_running(self) -> bool:
        """Whether the engine is open."""
        return not self.is_stopped

    @property
    def is_stopped(self) -> bool:
        """Whether the engine is closed."""
        return not self._engine.is_open

    @property
    def dead_error(self) -> BaseException:
        """Reason why it serves nothing."""
        return EngineError("the engine was closed; make a new one.")

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Every request is admitted: how many may come is decided before vLLM's server."""

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Requests end when their generator is closed."""

    async def is_tracing_enabled(self) -> bool:
        """Never."""
        return False

    async def check_health(self) -> None:
        """Raises: EngineError when the engine is closed."""
        if self.errored:
            raise self.dead_error

    async def do_log_stats(self) -> None:
        """Nothing is logged."""

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """The kinds of request that vLLM's engine can answer."""
        return tuple(self._llm.get_supported_tasks())


def _put(
    outputs: asyncio.Queue[tuple[_Choice, RequestOutput | EngineError]],
    choice: _Choice,
    output: RequestOutput | EngineError,
) -> None:
    outputs.put_nowait((choice, output))


def _prompt_ids(prompt: TokensInput) -> list[int]:
    """The ids of a prompt that vLLM rendered. Raises: ValueError for one that shows more than tokens."""
    if not isinstance(prompt, dict) or prompt.get("type") != "token":
        raise ValueError("only text can be recorded; leave images, audio and embeddings out of the request.")
    return list(prompt["prompt_token_ids"])


def _most(params: SamplingParams, asked: Asked) -> int:
    """Most tokens of a choice: what the client says, or else what the trajectory does; and its budget."""
    room = min(int(params.max_tokens), asked.trajectory.left(params.n))
    return room if asked.limited else min(room, asked.trajectory.sampling.max_tokens)


def _recorded(params: SamplingParams, asked: Asked, most: int, end_ids: Sequence[int]) -> SamplingParams:
    """How one choice is sampled: with the logprobs of what is sampled, as the sampling of the rows says."""
    ours, sampling = params.clone(), asked.trajectory.sampling
    ours.n, ours.max_tokens = 1, most
    ours.temperature, ours.min_tokens = sampling.temperature, min(sampling.min_tokens, most)
    ours.stop = [*(params.stop or ()), *sampling.stop]
    ours.logprobs = params.logprobs or 0
    ours.stop_token_ids = sorted({*(params.stop_token_ids or ()), *end_ids})
    ours.__post_init__()  # derives further fields from these
    return ours


def _streams(params: SamplingParams) -> bool:
    from vllm.sampling_params import RequestOutputKind

    return bool(params.output_kind != RequestOutputKind.FINAL_ONLY)
