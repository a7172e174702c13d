"""The model as a workflow sees it, where it is behind an endpoint: messages in, a reply out, no token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import cast

from explorers.conversations.messages import key
from explorers.conversations.recording import RecordingModel
from explorers.conversations.replies import Reply, ToolCall
from explorers.conversations.turns import Turn
from rft_data.core.canonical import canonical_json
from rft_data.core.engine import ChatCompletion, ChatEngine, Engine, Sampling
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.images import shows_images
from rft_data.core.rows import Experience, Message
from rft_data.core.words import ENDPOINT, Drift

_USAGE = "usage"
"""Key of a row's metadata: tokens of its turns, as the endpoint counted them."""
_BYTES_OF_A_TOKEN = 4
"""Of English text in large vocabularies; only a bound on memory is counted so."""


class EndpointModel(RecordingModel):
    """A model behind an endpoint. The endpoint gets each conversation as the caller has it.

    Rows hold messages and no token ids, and say who answered.
    """

    def __init__(
        self,
        engine: ChatEngine,
        sampling: Sampling,
        *,
        budget: int | None = None,
        room: int | None = None,
    ) -> None:
        """`budget`: most tokens that the whole rollout may sample, `room`: that its rows may have, what was
        given counted by its bytes; None: no limit."""
        super().__init__(sampling, "", budget, room)
        self._chat_engine = engine
        self._answers: dict[Turn, ChatCompletion] = {}

    async def complete(
        self, prompt: str | Sequence[int], *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Reply:
        """Raises: RecipeError, always: an endpoint takes messages."""
        raise RecipeError(
            "`model.complete` continues a text or token ids, and the engine 'openai' takes messages only; "
            "use `model.chat`, or an engine that serves weights."
        )

    def _row(self, row: Experience, last: Turn, trained: set[Turn]) -> Experience:
        """Without token ids, logprobs and policy versions, and with who answered."""
        first = next(place for place, turn in enumerate(last.path) if turn in trained)
        prompt = sum(len(turn.messages) + 1 for turn in last.path[:first]) + len(last.path[first].messages)
        answers = [self._answers[turn] for turn in trained]
        usage = {
            "prompt_tokens": sum(one.prompt_tokens for one in answers),
            "completion_tokens": sum(one.completion_tokens for one in answers),
        }
        served = next((one.served_by for one in answers if one.served_by), "")
        endpoint = {**self._chat_engine.endpoint, **({"served_by": served} if served else {})}
        return replace(
            row,
            token_ids=None,
            action_mask=None,
            logprobs=None,
            prompt_length=0,
            prompt_messages=prompt,
            sampling={**row.sampling, ENDPOINT: endpoint},
            metadata={**row.metadata, _USAGE: usage},
        )

    async def _begun(
        self, given: Sequence[Message], offered: str, tools: Sequence[Mapping[str, object]] | None
    ) -> Turn:
        """The next turn of a conversation; what is not recorded begins another row.

        Raises: RowError for messages that show images, which the endpoint would not find.
        """
        if shows_images(given):
            raise RowError("the messages show images, and the engine 'openai' sends none; use engine vllm.")
        keys = [key(message) for message in given]
        parent, known = self._turns.continued(keys, offered)
        recorded = parent is not None or self._turns.diverged(None, keys, offered, ended=False)
        forked = recorded and any(one["role"] == "assistant" for one in given[known:])
        self.drift[Drift.FORKED if forked else Drift.EXACT] += 1
        added = deepcopy(given[known:])
        size = len(canonical_json(list(added)).encode()) // _BYTES_OF_A_TOKEN
        return Turn(parent, tuple(keys[known:]), tuple(added), [], offered, size)

    async def _sample(
        self,
        turn: Turn,
        given: Sequence[Message],
        sampling: Sampling,
        tools: Sequence[Mapping[str, object]] | None,
    ) -> Reply:
        answer = await self._chat_engine.chat(given, tools, sampling)
        # without a count it may have sampled all that it was allowed to
        self.sampled += answer.completion_tokens or sampling.max_tokens
        self._answers[turn] = answer
        return _reply(answer)


def chat_engine(engine: Engine) -> ChatEngine:
    """The engine, if it takes messages. Raises: RecipeError when it does not."""
    if not hasattr(engine, "chat"):
        raise RecipeError(
            "the workflow was made without a tokenizer, for an engine that takes messages, and is played on "
            f"one that takes token ids ({type(engine).__name__}); give it the model's tokenizer."
        )
    return cast("ChatEngine", engine)


def _reply(answer: ChatCompletion) -> Reply:
    message = answer.message
    calls = tuple(_tool_call(call) for call in message.get("tool_calls") or ())
    return Reply(
        str(message["content"]),
        message.get("reasoning_content"),
        calls,
        answer.finish_reason,
        message,
        prompt_tokens=answer.prompt_tokens or None,
        sampled_tokens=answer.completion_tokens or None,
    )


def _tool_call(call: Message) -> ToolCall:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, str):  # the endpoint gave what is no JSON object
        return ToolCall(call["id"], function["name"], None, arguments)
    return ToolCall(call["id"], function["name"], arguments, canonical_json(arguments))
