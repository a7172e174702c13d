"""The model that a workflow samples from: messages in, a reply out, every turn recorded for the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

from explorers.conversations.messages import key, one_form
from explorers.conversations.replies import BudgetSpent, Reply
from explorers.conversations.rows import branch_rows, constant_columns, experience, step_rows
from explorers.conversations.turns import Turn, Turns
from rft_data.core.canonical import canonical_json
from rft_data.core.engine import Sampling
from rft_data.core.rows import Experience, Message, Task
from rft_data.core.words import Drift
from rft_data.core.workflow import RolloutContext


class RecordingModel(ABC):
    """One rollout's model. A call continues the recorded conversation whose messages begin its own.

    Calls may run at the same time, go back to an earlier turn, or ask the same again: each is a branch, and
    each branch is a row.
    """

    def __init__(
        self, sampling: Sampling, tokenizer_hash: str, budget: int | None, room: int | None = None
    ) -> None:
        """`budget`: most tokens that the whole rollout may sample, `room`: that its rows may have; None: no
        limit."""
        self._sampling = sampling
        self._tokenizer_hash = tokenizer_hash
        self._budget = budget
        self._room = room
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
        tools: Sequence[Mapping[str, object]] | None = None,
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
        turn = await self._begun(given, offered, tools)
        return await self._recorded(turn, given, sampling, tools)

    @property
    def held(self) -> int:
        """Tokens that its rows have: a branch has those before it once more."""
        return self._turns.given + self.sampled

    @abstractmethod
    async def complete(
        self, prompt: str | Sequence[int], *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Reply:
        """Sample what follows a plain text, or ids, without a chat template."""

    @property
    def turns(self) -> int:
        """Turns sampled so far."""
        return len(list(self._turns))

    def rows(self, task: Task, ctx: RolloutContext, *, step_wise: bool = False) -> list[Experience]:
        """The rows of what was sampled so far, without a reward: one for each branch, or for each turn.

        They differ in `turn`. A turn that several branches share is trained in the first one only.
        """
        constant = constant_columns(ctx.sampling, self._tokenizer_hash, self.drift)
        ends = (step_rows if step_wise else branch_rows)(self._turns)
        return [
            self._row(experience(last, trained, task, ctx, number, constant), last, trained)
            for number, (last, trained) in enumerate(ends)
        ]

    @abstractmethod
    async def _begun(
        self, given: Sequence[Message], offered: str, tools: Sequence[Mapping[str, object]] | None
    ) -> Turn:
        """The next turn of the conversation `given`: what it continues, and what it adds."""

    @abstractmethod
    async def _sample(
        self,
        turn: Turn,
        given: Sequence[Message],
        sampling: Sampling,
        tools: Sequence[Mapping[str, object]] | None,
    ) -> Reply:
        """Sample a turn, which was begun."""

    def _row(self, row: Experience, last: Turn, trained: set[Turn]) -> Experience:
        """The row that ends with the turn `last`, as it is stored."""
        return row

    async def _recorded(
        self,
        turn: Turn,
        given: Sequence[Message],
        sampling: Sampling,
        tools: Sequence[Mapping[str, object]] | None,
    ) -> Reply:
        """Sample a turn and keep it; one that fails leaves no trace."""
        self._turns.begin(turn)
        self._asked += sampling.max_tokens
        try:
            self._check_room()
            turn.reply = await self._sample(turn, given, sampling, tools)
            turn.reply_key = key(turn.reply.message)
        finally:
            self._asked -= sampling.max_tokens
            if turn.reply is None:
                self._turns.forget(turn)
        return deepcopy(turn.reply)  # a caller may change what it gets, and a tool its arguments

    def _check_room(self) -> None:
        """Raises: BudgetSpent."""
        if self._room is not None and self.held > self._room:
            raise BudgetSpent(
                f"the rollout's rows would have {self.held} tokens, of at most {self._room} (a branch has "
                "those before it once more); end it, or raise the budget."
            )

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
