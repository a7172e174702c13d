"""A model behind any OpenAI-compatible endpoint: messages in, messages out, no token ids and no logprobs.

For evaluation, for teachers and for exploring without logprobs. An endpoint that gives no answer is a failure
of the world around the model: the rollout is played again, or fails.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explorers.engines.chat_wire import WITHHELD, counted, read_answer, sent_messages, sent_tools
from explorers.engines.endpoint_options import endpoint_options
from ops.endpoint.calls import BudgetGone, EndpointDown, EndpointLate, EndpointRefusal, Spending
from ops.endpoint.key import endpoint_key
from rft_data.core.engine import ChatCompletion, Completion, Sampling
from rft_data.core.errors import (
    ContextOverflow,
    EndpointError,
    EngineError,
    ParityError,
    RecipeError,
    RftError,
    RowError,
)
from rft_data.core.lookup import need
from rft_data.core.masking import hide
from rft_data.core.rows import WeightRef
from rft_data.weights.served import ServedModel, served_model

if TYPE_CHECKING:
    from ops.endpoint.endpoint import Endpoint

_NONE_ANSWERED = 32
"""Calls in a row without an answer, all tries of each included, after which the engine gives up."""
_REFUSE_ALL = (301, 302, 303, 307, 308, 401, 402, 403, 404, 405)
"""Statuses with which an endpoint would refuse any call."""
_TOO_LONG = ("context_length", "context length", "maximum context")
"""Phrases of endpoints where a conversation leaves the model no room."""


class OpenaiEngine:
    """Asks one model at one endpoint; a version is a folder that names both (`rft_data.weights.served`)."""

    def __init__(self, model_path: Path, *, options: Mapping[str, object], **_of_weights: object) -> None:
        """Read the options and the key; nothing is asked yet.

        Args:
            model_path: the model's name at the endpoint; which one counts is said by `load_weights`.
            options: fields of `EndpointOptions`.
            _of_weights: what engines with weights take: seed, max_model_len, swap, transport.

        Raises: RecipeError, also when the key's variable is not set; MissingExtraError.
        """
        self._options = endpoint_options(options)
        self._key = endpoint_key(self._options.api_key_env, "the endpoint's key", RecipeError)
        if self._key is not None:
            hide({f"${{env:{self._options.api_key_env}}}": self._key})
        self._endpoints = need("ops.endpoint.endpoint", "ops", "the engine 'openai'")
        self._spending = Spending(self._options.limits)
        self._open: tuple[asyncio.AbstractEventLoop, Endpoint, asyncio.Semaphore] | None = None
        self._served: tuple[WeightRef, ServedModel] | None = None
        self._unanswered = 0  # calls in a row
        self._counts: Counter[str] = Counter()
        self._cost, self._calls_told = 0.0, 0

    @property
    def version(self) -> int:
        """The version that names the model. Raises: ParityError before `load_weights`."""
        return self._serving()[0].version

    @property
    def endpoint(self) -> Mapping[str, str]:
        """`ChatEngine.endpoint`. Raises: ParityError before `load_weights`."""
        model = self._serving()[1]
        return {"base_url": model.base_url, "model": model.name}

    async def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None,
        sampling: Sampling,
    ) -> ChatCompletion:
        """`ChatEngine.chat`.

        Raises: EndpointDown (a ConnectionError), EndpointLate (a TimeoutError); ContextOverflow; RowError
            when the endpoint refuses this conversation; EndpointError when it would refuse any, when the
            budget is spent, or when it answered none of many calls.
        """
        model = self._serving()[1].name
        try:
            answer = await self._answer(model, messages, self._fields(tools, sampling))
        except EndpointRefusal as err:
            self._unanswered = 0
            raise self._refusal(err, model) from err
        except BudgetGone as err:
            raise EndpointError(
                f"{err}: explorer.engine.options.limits allow no further call. What is stored stays; raise "
                "the limit, and resume."
            ) from err
        except (EndpointDown, EndpointLate) as err:
            self._note_silence(err)
            raise
        except asyncio.CancelledError:
            self._counts["endpoint_cancelled"] += 1
            raise
        self._unanswered = 0
        return answer

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Raises: RecipeError, always: an endpoint takes messages."""
        raise RecipeError(
            "the engine 'openai' takes messages and gives no token ids, and the workflow asks it to continue "
            "ids (`model.complete`, `engine.generate`); use `model.chat`, a built-in workflow, or an engine "
            "that serves weights."
        )

    def load_weights(self, ref: WeightRef) -> float:
        """Ask the model that the version names from now on; 0.0, for there are no weights to compare.

        Raises: IntegrityError when it names none; EngineError when it is at another endpoint.
        """
        model = served_model(Path(ref.path))
        if model.base_url != self._options.base_url:
            raise EngineError(
                f"version {ref.version} is a model at {model.base_url}, and the engine asks "
                f"{self._options.base_url}; give the run another name."
            )
        self._served = (ref, model)
        return 0.0

    async def swap_weights(self, ref: WeightRef) -> float:
        """The same; calls under way are answered by the model they asked."""
        return self.load_weights(ref)

    def metrics(self) -> dict[str, float]:
        """Calls (tries included), tokens as the endpoint counted them and their cost, since the last call."""
        tries, self._calls_told = self._spending.calls - self._calls_told, self._spending.calls
        counts, self._counts = self._counts, Counter()
        cost, self._cost = self._cost, 0.0
        found = {"endpoint_calls": float(tries), **{name: float(n) for name, n in sorted(counts.items())}}
        return {**found, **({"endpoint_cost": cost} if self._options.price else {})}

    def close(self) -> None:
        """Close the connections; idempotent."""
        self._served = None
        if self._open is not None:
            loop, endpoint, _ = self._open
            self._open = None
            if loop.is_running():
                loop.call_soon_threadsafe(lambda: loop.create_task(endpoint.close()))
            elif not loop.is_closed():
                loop.run_until_complete(endpoint.close())

    def _serving(self) -> tuple[WeightRef, ServedModel]:
        if self._served is None:
            raise ParityError("the engine was told no model yet, or was closed; call load_weights first.")
        return self._served

    def _opened(self) -> tuple[Endpoint, asyncio.Semaphore]:
        """The connections of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._open is None or self._open[0] is not loop:
            endpoint = self._endpoints.Endpoint(self._options.base_url, self._key, self._spending)
            self._open = (loop, endpoint, asyncio.Semaphore(self._options.limits.concurrency))
        return self._open[1:]

    def _fields(self, tools: Sequence[Mapping[str, object]] | None, sampling: Sampling) -> dict[str, object]:
        """Fields of a request beside model and messages."""
        given: dict[str, object] = {
            **self._options.request,
            self._options.length_field: sampling.max_tokens,
            "temperature": sampling.temperature,
        }
        if sampling.stop:
            given["stop"] = list(sampling.stop)
        if sampling.min_tokens:
            given["min_tokens"] = sampling.min_tokens
        if tools:
            given["tools"] = sent_tools(tools)
        return given

    async def _answer(
        self, model: str, messages: Sequence[Mapping[str, object]], fields: Mapping[str, object]
    ) -> ChatCompletion:
        """One call, all its tries included. Raises: NoAnswer, RowError."""
        endpoint, slots = self._opened()
        async with slots:
            data = await endpoint.ask(model, sent_messages(messages), fields)
        prompt, completion = counted(data)  # paid for, whether it can be read or not
        if not prompt + completion:
            self._counts["endpoint_uncounted"] += 1
        self._counts.update({"endpoint_prompt_tokens": prompt, "endpoint_completion_tokens": completion})
        self._cost += self._options.cost(prompt, completion)
        return _read(data)

    def _refusal(self, err: EndpointRefusal, model: str) -> RftError:
        """Meaning of a refusal: for this conversation, or for any."""
        said = str(err).lower()
        if any(words in said for words in _TOO_LONG):
            return ContextOverflow(f"the endpoint has no room for the conversation: {err}")
        if err.status not in _REFUSE_ALL:
            return RowError(f"the endpoint refused the conversation: {err}")
        key = self._options.api_key_env
        named = f"the key in '{key}'" if key else "'api_key_env' (no key is sent)"
        return EndpointError(
            f"the endpoint {self._options.base_url} refuses the model '{model}' ({err}); correct the model's "
            f"name, 'base_url' or {named}."
        )

    def _note_silence(self, err: Exception) -> None:
        """Count a call without an answer. Raises: EndpointError after too many in a row."""
        self._counts["endpoint_unanswered"] += 1
        self._unanswered += 1
        if self._unanswered >= _NONE_ANSWERED:
            raise EndpointError(
                f"the endpoint {self._options.base_url} answered none of {self._unanswered} calls, the last: "
                f"{err}. What is stored stays; resume when it is back."
            ) from err


def _read(data: Mapping[str, Any]) -> ChatCompletion:
    """Raises: EndpointDown for an answer that says nothing; RowError for one that was withheld."""
    if data["choices"][0].get("finish_reason") == WITHHELD:
        raise RowError("the endpoint's content filter withheld the answer; the model did not end it")
    try:
        return read_answer(data)
    except (ValueError, TypeError, AttributeError) as err:
        raise EndpointDown(f"the answer is no chat completion: {err}") from err
