"""The model as a workflow sees it: messages in, a reply out, and every token recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from explorers.conversations.drift import corrected
from explorers.conversations.messages import key, one_form
from explorers.conversations.parsing import parse, tool_names
from explorers.conversations.replies import BudgetSpent, Reply
from explorers.conversations.rows import branch_rows, experience, step_rows
from explorers.conversations.shape import broken, form
from explorers.conversations.template import ChatTemplate
from explorers.conversations.turns import Turn, Turns
from rft_data.core.errors import RowError
from rft_data.core.protocols import Engine, RolloutContext, Sampling
from rft_data.core.rows import Experience, Message, Task, canonical_json
from rft_data.core.words import HISTORY_DRIFT, Drift, FinishReason, TemplatePolicy


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
        policy: TemplatePolicy = TemplatePolicy.FORK,
    ) -> None:
        """`budget`: most tokens that the whole rollout may sample, None: no limit; `policy`: what is done
        where the template renders history in another way than it was sampled."""
        self._engine = engine
        self._template = template
        self._sampling = sampling
        self._tokenizer_hash = tokenizer_hash
        self._budget = budget
        self._policy = policy
        self._turns = Turns()
        self.drift: Counter[Drift] = Counter()
        """Chat calls by how their history differed from what was sampled."""
        self.sampled = 0
        """Tokens sampled so far."""
        self._asked = 0  # tokens that the turns under way may sample

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
        sampling = self._next(max_tokens, stop)
        given, offered = one_form(messages), canonical_json(list(tools) if tools else None)
        return await self._sample(self._begun(given, offered, tools), sampling, tools)

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

    @property
    def turns(self) -> int:
        """Turns sampled so far."""
        return len(list(self._turns))

    def rows(self, task: Task, ctx: RolloutContext, *, step_wise: bool = False) -> list[Experience]:
        """The rows of what was sampled so far, without a reward: one for each branch, or for each turn.

        They differ in `turn`. A turn that several branches share is trained in the first one only.
        """
        drifted = {str(kind): n for kind, n in sorted(self.drift.items()) if kind is not Drift.EXACT}
        constant = {
            "sampling": ctx.sampling.stored(),
            "tokenizer_hash": self._tokenizer_hash,
            "metadata": {HISTORY_DRIFT: drifted} if drifted else {},
        }
        ends = (step_rows if step_wise else branch_rows)(self._turns)
        return [
            experience(last, trained, task, ctx, number, constant)
            for number, (last, trained) in enumerate(ends)
        ]

    def _begun(self, given: list[dict[str, Any]], offered: str, tools: Sequence[Any] | None) -> Turn:
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
        if parent is None or parent.reply is None:
            context, added = self._template.prompt(history, tools), history
        else:
            added = given[known:]
            context = self._template.between(parent.reply.message, added, tools, ended=parent.ended)
        return Turn(parent, tuple(keys[known:]), tuple(deepcopy(added)), context, offered)

    def _followed(
        self, given: list[dict[str, Any]], keys: list[str], offered: str
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

    def _corrected(self, turn: Turn, said: list[dict[str, Any]], offered: str) -> bool:
        """Put the caller's text into a turn, unless the template would begin another row after it anyway."""
        *before, message = turn.conversation
        if self._broken(turn, [*before, {**message, "content": said[0]["content"]}, *said[1:]], offered):
            return False
        return corrected(turn, said[0], self._template)

    def _broken(self, parent: Turn, history: list[dict[str, Any]], offered: str) -> str:
        """Why the template would render the conversation up to `parent` in another way now; or nothing."""
        if self._policy is TemplatePolicy.KEEP_THINKING:
            return ""
        last = len(parent.conversation) - 1
        return broken(self._template, tuple(map(form, history)), last, offered != "null")

    async def _sample(self, turn: Turn, sampling: Sampling, tools: Sequence[Any] | None) -> Reply:
        prompt = [*(turn.parent.ids if turn.parent else ()), *turn.context]
        self._turns.begin(turn)
        self._asked += sampling.max_tokens
        try:
            completion = await self._engine.generate(prompt, sampling)
            self.sampled += len(completion.token_ids)
            turn.take(completion)
            stopped = completion.finish_reason == FinishReason.STOP
            turn.ended = stopped and self._template.has_ended(turn.sampled, sampling.stop)
            turn.reply = self._reply(turn, prompt, completion.finish_reason, tools)
            turn.reply_key = key(turn.reply.message)
        finally:
            self._asked -= sampling.max_tokens
            if turn.reply is None:
                self._turns.forget(turn)
        return deepcopy(turn.reply)  # a caller may change what it gets, and a tool its arguments

    def _next(self, max_tokens: int | None, stop: Sequence[str]) -> Sampling:
        """How the next turn is sampled. Raises: BudgetSpent when the rollout may sample no more."""
        most = self._sampling.max_tokens if max_tokens is None else max_tokens
        if most < 1:
            raise ValueError(f"max_tokens is {most}; wanted 1 or more.")
        if self._budget is not None:
            most = min(most, self._budget - self.sampled - self._asked)
        if most < 1:
            raise BudgetSpent(
                f"the rollout has sampled {self.sampled} tokens of a budget of {self._budget}, and turns "
                f"under way may sample {self._asked}; end it, or raise the budget."
            )
        least = min(self._sampling.min_tokens, most)
        stops = (*self._sampling.stop, *stop)
        return replace(self._sampling, max_tokens=most, min_tokens=least, stop=stops)

    def _reply(self, turn: Turn, prompt: list[int], finish: str, tools: Sequence[Any] | None) -> Reply:
        template = self._template
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
