"""The model as a workflow sees it: messages in, a reply out, and every token recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from explorers.conversations.messages import key, one_form
from explorers.conversations.parsing import parse, tool_names
from explorers.conversations.replies import BudgetSpent, Reply
from explorers.conversations.rows import branch_rows, experience, step_rows
from explorers.conversations.template import ChatTemplate
from explorers.conversations.turns import Turn, Turns
from rft_data.core.protocols import Engine, RolloutContext, Sampling
from rft_data.core.rows import Experience, Message, Task, canonical_json
from rft_data.core.words import FinishReason


class Model:
    """One rollout's model. A call continues the recorded conversation whose messages begin its own.

    Then only what the new messages add is rendered, and appended to the recorded ids. Calls may run at the
    same time, go back to an earlier turn, or ask the same again: each is a branch, and each branch is a row.
    """

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate,
        sampling: Sampling,
        *,
        tokenizer_hash: str = "",
        budget: int | None = None,
    ) -> None:
        """`budget`: most tokens that the whole rollout may sample; None: no limit."""
        self._engine = engine
        self._template = template
        self._sampling = sampling
        self._tokenizer_hash = tokenizer_hash
        self._budget = budget
        self._turns = Turns()
        self.sampled = 0
        """Tokens sampled so far."""

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> Reply:
        """Sample the next turn of a conversation.

        Args:
            messages: the whole conversation, as the caller has it.
            tools: definitions of tools, in OpenAI's form.
            max_tokens: most tokens of this turn; None: as the recipe says.
            stop: texts that end the turn, beside those of the recipe.

        Raises: ContextOverflow, BudgetSpent: end the rollout, its rows so far count. RowError when the
            template cannot render the messages, and what the engine raises.
        """
        given, offered = one_form(messages), canonical_json(list(tools) if tools else None)
        keys = [key(message) for message in given]
        parent, known = self._turns.continued(keys, offered)
        added = given[known:]
        if parent is None:
            context = self._template.prompt(added, tools)
        else:
            last = parent.reply.message if parent.reply else {}
            context = self._template.between(last, added, tools, ended=parent.ended)
        turn = Turn(parent, tuple(keys[known:]), tuple(added), context, offered)
        return await self._sample(turn, self._next(max_tokens, stop), tools)

    async def complete(
        self, prompt: str | Sequence[int], *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Reply:
        """Sample what follows a plain text, or ids, without a chat template.

        A prompt that begins with an earlier prompt and its completion goes on with that row: only what it
        adds is tokenised. An end token that was sampled stays where it is.
        """
        parent, added = self._turns.extended(prompt)
        if isinstance(added, str):
            context = (
                self._template.ids(added) if parent else list(self._template.tokenizer(added)["input_ids"])
            )
        else:
            context = list(added)
        said = added if isinstance(added, str) else self._template.tokenizer.decode(context)
        turn = Turn(parent, (said,), ({"role": "user", "content": said},), context, offered="")
        return await self._sample(turn, self._next(max_tokens, stop), None)

    def rows(self, task: Task, ctx: RolloutContext, *, step_wise: bool = False) -> list[Experience]:
        """The rows of what was sampled so far, without a reward: one for each branch, or for each turn.

        They differ in `turn`. A turn that several branches share is trained in the first one only.
        """
        constant = {"sampling": ctx.sampling.stored(), "tokenizer_hash": self._tokenizer_hash}
        ends = (step_rows if step_wise else branch_rows)(self._turns)
        return [
            experience(last, trained, task, ctx, number, constant)
            for number, (last, trained) in enumerate(ends)
        ]

    async def _sample(self, turn: Turn, sampling: Sampling, tools: Sequence[Any] | None) -> Reply:
        prompt = [*(turn.parent.ids if turn.parent else ()), *turn.context]
        self._turns.begin(turn)
        try:
            completion = await self._engine.generate(prompt, sampling)
            self.sampled += len(completion.token_ids)
            turn.take(completion)
            turn.reply = self._reply(turn, prompt, completion.finish_reason, tools)
            turn.reply_key = key(turn.reply.message)
        finally:
            if turn.reply is None:
                self._turns.forget(turn)
        return turn.reply

    def _next(self, max_tokens: int | None, stop: Sequence[str]) -> Sampling:
        """How the next turn is sampled. Raises: BudgetSpent when the rollout may sample no more."""
        wanted = self._sampling.max_tokens if max_tokens is None else max_tokens
        if self._budget is not None:
            wanted = min(wanted, self._budget - self.sampled)
        if wanted < 1:
            raise BudgetSpent(
                f"the rollout has sampled {self.sampled} tokens of a budget of {self._budget}, and the turn "
                f"may sample {wanted}; end it, or raise the budget."
            )
        return replace(self._sampling, max_tokens=wanted, stop=(*self._sampling.stop, *stop))

    def _reply(self, turn: Turn, prompt: list[int], finish: str, tools: Sequence[Any] | None) -> Reply:
        template = self._template
        turn.ended = template.has_ended(turn.sampled, stopped=finish == FinishReason.STOP)
        said = turn.sampled[:-1] if turn.ended else turn.sampled
        return parse(
            template.tokenizer.decode(said, skip_special_tokens=False),
            finish,
            tools=tool_names(tools),
            thinking_open=template.opens_thinking(prompt),
            keep_thinking=not template.renders_thinking,
            first_call=sum(len(one.reply.tool_calls) for one in turn.path if one.reply),
            special=template.special_texts,
        )
