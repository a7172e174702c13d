"""The model of an engine that serves weights: messages in, a reply out, and every token recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

from explorers.conversations.drift import corrected
from explorers.conversations.messages import key
from explorers.conversations.parsing import parse, tool_names
from explorers.conversations.recording import RecordingModel
from explorers.conversations.replies import Reply
from explorers.conversations.shape import broken, form
from explorers.conversations.template import ChatTemplate
from explorers.conversations.turns import Turn
from explorers.engines.images import shown
from explorers.engines.proof import check_room
from rft_data.core.engine import Engine, Sampling
from rft_data.core.errors import ContextOverflow, RowError
from rft_data.core.images import image_ids
from rft_data.core.rows import Message
from rft_data.core.words import Drift, FinishReason, TemplatePolicy

_ALWAYS = 1 << 16
"""Characters that are made ids of whatever the engine has room for."""


class Model(RecordingModel):
    """A model whose token ids are known: what new messages add is rendered alone, and appended to the ids."""

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate,
        sampling: Sampling,
        *,
        tokenizer_hash: str = "",
        budget: int | None = None,
        room: int | None = None,
        policy: TemplatePolicy = TemplatePolicy.FORK,
    ) -> None:
        """`budget`: most tokens that the whole rollout may sample, `room`: that its rows may have, None: no
        limit; `policy`: what is done where the template renders history in another way than it was sampled.
        """
        super().__init__(sampling, tokenizer_hash, budget, room)
        self._engine = engine
        self._template = template
        self._policy = policy

    async def complete(
        self, prompt: str | Sequence[int], *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Reply:
        """Sample what follows a plain text, or ids, without a chat template.

        A prompt that begins with an earlier prompt and its completion goes on with that row: only what it
        adds is tokenised. An end token that was sampled stays where it is.
        """
        parent, added = self._turns.extended(prompt)
        context = await self._ids(added, special=parent is None) if isinstance(added, str) else list(added)
        said = added if isinstance(added, str) else self._template.tokenizer.decode(context)
        turn = Turn(parent, (said,), ({"role": "user", "content": said},), context, offered="")
        return await self._recorded(turn, [], self._next(max_tokens, stop), None)

    async def _begun(
        self, given: Sequence[Message], offered: str, tools: Sequence[Mapping[str, object]] | None
    ) -> Turn:
        """The next turn of a conversation: what it continues, and the ids that its new messages add."""
        keys = [key(message) for message in given]
        parent, known, drift = self._followed(given, keys, offered)
        history = [*(parent.conversation if parent else ()), *given[known:]]
        if parent is not None and (why := self._broken(parent, history, offered)):
            if self._policy is TemplatePolicy.REFUSE:
                raise RowError(
                    f"the chat template does not go on as it began ({why}), and the workflow's argument "
                    "'template' is refuse; say fork or keep_thinking, or take another template."
                )
            parent, known, drift = None, 0, Drift.FORKED
            keys = [key(message) for message in history]
        self.drift[drift] += 1
        added: Sequence[Message]
        if parent is None or parent.reply is None:
            added = history
            context = await self._ids(self._template.text(history, tools, opened=True))
        else:
            added = given[known:]
            tail = self._template.tail(parent.reply.message, added, tools)
            context = self._template.after_end(await self._ids(tail), ended=parent.ended)
        return Turn(parent, tuple(keys[known:]), tuple(deepcopy(added)), context, offered)

    async def _ids(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text. Raises: ContextOverflow for one that the engine has no room for."""
        most: int | None = getattr(self._engine, "max_model_len", None)
        if most is None:
            return await self._template.ids_apart(text, special=special)
        if len(text) > _ALWAYS and len(text) > most * self._template.longest:
            raise ContextOverflow(
                f"a prompt of {len(text)} characters has more tokens than max_model_len {most} allows."
            )
        ids = await self._template.ids_apart(text, special=special)
        if ids:
            check_room(len(ids), most)
        return ids

    def _followed(
        self, given: Sequence[Message], keys: list[str], offered: str
    ) -> tuple[Turn | None, int, Drift]:
        """The turn that is continued, how many messages are known by then, and how the history differs."""
        drift = Drift.EXACT
        while True:
            parent, known = self._turns.continued(keys, offered)
            asked = self._turns.diverged(parent, keys[known:], offered)
            if not any(self._corrected(turn, given[known + len(turn.keys) :], offered) for turn in asked):
                break
            drift = Drift.MASKED
        recorded = parent is not None or self._turns.diverged(None, keys, offered, ended=False)
        if drift is Drift.EXACT and recorded and any(one["role"] == "assistant" for one in given[known:]):
            drift = Drift.FORKED
        return parent, known, drift

    def _corrected(self, turn: Turn, said: Sequence[Message], offered: str) -> bool:
        """Put the caller's text into a turn, unless the template would begin another row after it anyway."""
        *before, message = turn.conversation
        if self._broken(turn, [*before, {**message, "content": said[0]["content"]}, *said[1:]], offered):
            return False
        return corrected(turn, said[0], self._template)

    def _broken(self, parent: Turn, history: Sequence[Message], offered: str) -> str:
        """Reason why the template would now render the turns up to `parent` in another way; or nothing."""
        if self._policy is TemplatePolicy.KEEP_THINKING:
            return ""
        last = len(parent.conversation) - 1
        return broken(self._template, tuple(map(form, history)), last, offered != "null")

    async def _sample(
        self,
        turn: Turn,
        given: Sequence[Message],
        sampling: Sampling,
        tools: Sequence[Mapping[str, object]] | None,
    ) -> Reply:
        prompt = [*(turn.parent.asked_ids if turn.parent else ()), *turn.context]
        images = image_ids(message for one in turn.path for message in one.messages)
        completion = await self._engine.generate(prompt, sampling, **shown(images))
        self.sampled += len(completion.token_ids)
        turn.take(completion)
        stopped = completion.finish_reason == FinishReason.STOP
        turn.ended = stopped and self._template.has_ended(turn.sampled, sampling.stop)
        return turn_reply(turn, prompt, completion.finish_reason, tools, self._template)


def turn_reply(
    turn: Turn,
    prompt: list[int],
    finish: str,
    tools: Sequence[Mapping[str, object]] | None,
    template: ChatTemplate,
) -> Reply:
    """Reply of a turn that was sampled after the ids `prompt`."""
    said = turn.sampled[:-1] if turn.ended else turn.sampled
    reply = parse(
        template.tokenizer.decode(said, skip_special_tokens=False),
        finish,
        tools=tool_names(tools),
        thinking_open=template.opens_thinking(prompt),
        keep_thinking=not template.renders_thinking,
        first_call=sum(len(one.reply.tool_calls) for one in turn.path if one.reply),
        special=template.special_texts,
    )
    return replace(reply, prompt_tokens=len(prompt), sampled_tokens=len(turn.sampled))
