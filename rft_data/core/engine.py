"""Engines, and what they are asked for and answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rft_data.core.rows import Message, VersionSpan, WeightRef


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one completion. No top-p or top-k: logprobs must be of the whole distribution."""

    max_tokens: int
    temperature: float = 1.0
    """0 means greedy (then logprobs are of the temperature-1 distribution)."""
    stop: tuple[str, ...] = ()
    """Texts that end the completion; the tokens up to the end of the text are kept."""
    min_tokens: int = 0
    """No end token and no stop text before so many tokens; the logprobs are of the distribution without end
    tokens, from which these tokens are sampled."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))

    def stored(self) -> dict[str, object]:
        """The fields as rows hold them: those that were added later only where they are set."""
        values: dict[str, object] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        if self.stop:
            values["stop"] = list(self.stop)
        if self.min_tokens:
            values["min_tokens"] = self.min_tokens
        return values


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer of an engine to one prompt."""

    token_ids: Sequence[int]
    """Sampled ids, the end-of-sequence token included."""
    logprobs: Sequence[float]
    """One per sampled id, natural log, of the tempered distribution."""
    finish_reason: str
    """A `FinishReason`, or another word of the engine."""
    version_spans: Sequence[VersionSpan]
    """The policy version that sampled each span of ids; indices into `token_ids`."""
    prompt_ids: Sequence[int] | None = None
    """The prompt as the model saw it, where images took places in it; None: as it was given."""
    processor: str = ""
    """Hash of what made tensors of the images; empty without images."""


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """The answer of a chat engine: an assistant's message, of which no token is known."""

    message: Message
    """The message as rows store it: role, content, and where there are any, reasoning_content and tool_calls
    (arguments as objects; the text of those that are no JSON object)."""
    finish_reason: str
    """A `FinishReason`, or another word of the endpoint."""
    prompt_tokens: int
    """As the endpoint counted them; 0 where it says nothing."""
    completion_tokens: int
    served_by: str
    """The model that the endpoint says it was; empty where it says nothing."""


class Engine(Protocol):
    """Serves one policy version at a time: token ids in, token ids and logprobs out."""

    @property
    def version(self) -> int:
        """The version that it serves, proved with the probe."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[str] = ()
    ) -> Completion:
        """Sample one completion; many calls run together. What an engine has no room for is found before
        it is rendered where it says its `max_model_len`, tokens.

        Args: images: payload ids of the images in the order of their placeholders in the prompt, one
            placeholder each. An engine without `images_from` is never called with it.
        """
        ...

    def load_weights(self, ref: WeightRef) -> float:
        """Swap the live weights in one atomic call and prove them against the directory's probe.

        Returns: the largest absolute difference of logprobs on the probe (nats).
        Raises: ParityError, and the engine keeps refusing to serve, when it is above tolerance.
        """
        ...

    def close(self) -> None:
        """Free the engine; idempotent."""
        ...


class ChatEngine(Protocol):
    """An engine that takes and gives messages instead of token ids: a model behind an endpoint.

    It has the methods of `Engine` too, of which `generate` raises. Its rows have no token ids, no
    logprobs and no policy version.
    """

    @property
    def endpoint(self) -> Mapping[str, str]:
        """The endpoint that sampled, as rows name it: `base_url` and `model`."""
        ...

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        sampling: Sampling,
    ) -> ChatCompletion:
        """Sample the next turn of a conversation; many calls run together.

        Raises: ConnectionError, TimeoutError when the endpoint gives no answer; ContextOverflow; RowError for
            a conversation that it refuses; other RftErrors when it would refuse any.
        """
        ...
