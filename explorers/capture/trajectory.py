"""The turns of one trajectory, as the engine saw and sampled them, whichever route they came by."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from explorers.capture.history import Chat, History, compared
from explorers.conversations.messages import one_form
from explorers.conversations.model import turn_reply
from explorers.conversations.rows import branch_rows, constant_columns, experience
from explorers.conversations.template import ChatTemplate
from explorers.conversations.turns import Turn, Turns
from rft_data.core.canonical import canonical_json
from rft_data.core.engine import Sampling
from rft_data.core.errors import BudgetSpent, ContextOverflow, RowError
from rft_data.core.rows import Experience, Message, Task, VersionSpan
from rft_data.core.words import Drift, FinishReason, RolloutEnd, TemplatePolicy
from rft_data.core.workflow import RolloutContext

ABORTED, CONSTRAINED = "aborted_turns", "constrained_turns"
"""Keys of a row's metadata: turns that a client gave up (they are not trained), and turns that were sampled
under a grammar (they have no loss: their logprobs are of the tokens that it allows)."""


@dataclass(slots=True)
class Asked:
    """The messages and tools of the request that is being answered."""

    trajectory: Trajectory
    messages: Sequence[Message] | None
    """None: no chat, or messages of another form than OpenAI's, until vLLM's server has made it of them."""
    tools: Sequence[Mapping[str, object]] | None
    limited: bool = True
    """Whether the client says how many tokens may be sampled."""
    ids: bool = False
    """Whether the client wants token ids."""
    strict: bool = False
    """Whether calls of some tool are to follow its schema."""


ASKED: ContextVar[Asked | None] = ContextVar("asked", default=None)
"""The request that this asyncio task answers."""


@dataclass(slots=True)
class Trajectory:
    """One program's conversation with the model, or several: a tree of turns."""

    id: str
    template: ChatTemplate
    sampling: Sampling
    """`max_tokens`: of a request that says nothing; the temperature is that of every request."""
    tokenizer_hash: str
    policy: TemplatePolicy = TemplatePolicy.FORK
    budget: int | None = None
    """Most tokens that it may sample."""
    room: int | None = None
    """Most tokens that its rows may have."""
    turns: Turns = field(default_factory=Turns)
    drift: Counter[Drift] = field(default_factory=Counter)
    """Requests by how their history differed from what was sampled."""
    sampled: int = 0
    """Tokens sampled so far."""
    aborted: int = 0
    """Turns that a client gave up before they were finished."""
    aborted_tokens: int = 0
    constrained: int = 0
    """Turns that were sampled under a grammar."""
    closed: bool = False
    """Whether it takes no more requests."""
    end: RolloutEnd | None = None
    """The limit that a request of it met."""
    error: Exception | None = None
    """Reason why a request of it was not answered, where no limit was met."""
    _asked: int = 0
    _history: History = field(init=False)

    def __post_init__(self) -> None:
        self._history = History(self.turns, self.template, self.policy)

    def begin(self, prompt_ids: Sequence[int], asked: Asked, choices: int, max_tokens: int) -> list[Turn]:
        """The turns of a request that is about to be sampled, one for each choice.

        The ids to sample after are the `asked_ids` of any of them.
        Raises: BudgetSpent; RowError for a trajectory that was closed, and by `History.continued`.
        """
        if self.closed:
            raise RowError(f"trajectory '{self.id}' is closed; open another one.")
        self._spend(choices * max_tokens)
        chat = _chat(asked)
        found = self._history.continued(prompt_ids, chat)
        self.drift[found.drift] += 1
        added = self._messages(found.parent, found.added, chat)
        keys, offered = tuple(map(compared, added)), _offered(asked)
        begun = [Turn(found.parent, keys, added, list(found.added), offered) for _ in range(choices)]
        for turn in begun:
            self.turns.begin(turn)
        self._check_room(begun)
        self._asked += choices * max_tokens
        return begun

    def finish(
        self, turn: Turn, finish: str, spans: Sequence[VersionSpan], asked: Asked, stop: Sequence[str] = ()
    ) -> None:
        """Keep a turn whose `sampled` and `logprobs` are whole."""
        turn.spans = list(spans)
        turn.ended = finish == FinishReason.STOP and self.template.has_ended(turn.sampled, stop)
        turn.reply = turn_reply(
            turn, turn.asked_ids[: -len(turn.sampled)], finish, asked.tools, self.template
        )
        turn.reply_key = compared(turn.reply.message)
        self.sampled += len(turn.sampled)

    def abort(self, turn: Turn) -> None:
        """Forget a turn that was not finished."""
        self.turns.forget(turn)
        self._history.forget(turn)
        self.aborted += 1
        self.aborted_tokens += len(turn.sampled)
        self.sampled += len(turn.sampled)

    def settle(self, tokens: int) -> None:
        """A request is over that could sample so many tokens."""
        self._asked -= tokens

    def left(self, choices: int) -> int:
        """Tokens that each of so many choices may sample yet, where there is a budget; at least 1."""
        if self.budget is None:
            return sys.maxsize
        return max(1, (self.budget - self.sampled - self._asked) // choices)

    def failed(self, err: Exception) -> None:
        """Keep why a request was not answered."""
        if isinstance(err, ContextOverflow | BudgetSpent):
            self.end = RolloutEnd.CONTEXT if isinstance(err, ContextOverflow) else RolloutEnd.BUDGET
        else:
            self.error = err

    def rows(self, task: Task, ctx: RolloutContext) -> list[Experience]:
        """One row for each branch, without a reward; shared turns are trained in the first."""
        counts = {ABORTED: self.aborted, CONSTRAINED: self.constrained}
        constant = constant_columns(
            ctx.sampling, self.tokenizer_hash, self.drift, {key: n for key, n in counts.items() if n}
        )
        return [
            experience(last, trained, task, ctx, number, constant)
            for number, (last, trained) in enumerate(branch_rows(self.turns))
        ]

    @property
    def held(self) -> int:
        """Tokens that it holds in memory, or will at its end: those of its rows."""
        return self.turns.given + self.sampled - self.aborted_tokens

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The messages before the first sampled turn."""
        first = next(iter(self.turns), None)
        return () if first is None else first.path[0].messages

    def _spend(self, tokens: int) -> None:
        if self.budget is not None and self.sampled + self._asked + tokens > self.budget:
            raise BudgetSpent(
                f"trajectory '{self.id}' has sampled {self.sampled} tokens of {self.budget}, requests under "
                f"way may sample {self._asked}, and this one asks for {tokens}; end it, ask for fewer tokens "
                "(max_tokens), or raise the server's limit."
            )

    def _check_room(self, begun: Sequence[Turn]) -> None:
        """Raises: RowError when the rows would be too long with these turns, which are forgotten then."""
        if self.room is not None and (held := self.held) > self.room:
            for turn in begun:
                self.turns.forget(turn)
            raise RowError(
                f"the rows of trajectory '{self.id}' would have {held} tokens, of at most {self.room} (a "
                "branch has those before it once more); end it, or send fewer branches."
            )

    def _messages(self, parent: Turn | None, added: Sequence[int], chat: Chat | None) -> tuple[Message, ...]:
        """The messages that a request adds; what it adds as one message where that is not known."""
        known = 0 if parent is None else len(parent.conversation)
        if chat is not None and len(chat.messages) > known:
            return tuple(chat.messages[known:])
        text = self.template.tokenizer.decode(list(added), skip_special_tokens=False)
        return ({"role": "user", "content": text},)


def _offered(asked: Asked) -> str:
    return "" if asked.messages is None else canonical_json(list(asked.tools) if asked.tools else None)


def _chat(asked: Asked) -> Chat | None:
    """A client's messages, where they are such as rows can have; vLLM renders more than we store."""
    if asked.messages is None:
        return None
    try:
        messages = one_form(asked.messages)
    except (RowError, TypeError, ValueError):
        return None
    return Chat(messages, asked.tools or None, _offered(asked), tuple(map(compared, messages)))
