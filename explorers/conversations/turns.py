"""The sampled turns of a rollout as a tree: each turn holds only the tokens and messages that it adds.

The path from a root to a leaf is one row: its ids are exactly what the engine saw and sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from explorers.conversations.replies import Reply
from rft_data.core.engine import Completion
from rft_data.core.errors import EngineError
from rft_data.core.rows import Message, VersionSpan


@dataclass(eq=False, slots=True)
class Turn:
    """One sampled turn and what was appended to the conversation before it."""

    parent: Turn | None
    keys: tuple[str, ...]
    """Keys of the appended messages; for a completion of plain text or ids, what it was asked with."""
    messages: tuple[Message, ...]
    """The appended messages."""
    context: list[int]
    """Ids that stand before the sampled ones: given, not sampled."""
    offered: str
    """The tools that were offered, as canonical JSON; empty for a completion, which is no chat."""
    size: int | None = None
    """As how many tokens the messages count, where `context` does not have their ids."""
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    reply: Reply | None = None
    """None while it is being sampled."""
    reply_key: str = ""
    ended: bool = False
    """Whether the end token of the turn was sampled."""
    children: list[Turn] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)
    """Ids that the caller put in the place of the sampled ones from the divergence on; they have no loss."""
    asked: list[int] | None = None
    """`context` with one placeholder for each image, as the engine is asked; None: without images."""
    processor: str = ""
    """Hash of what made tensors of the images."""
    constrained: bool = False
    """Whether a grammar said what may be sampled: the logprobs are of what it allows, so there is no loss."""

    def take(self, completion: Completion) -> None:
        """Keep what was sampled, and the context as the model saw it."""
        if completion.prompt_ids is not None:
            before = [] if self.parent is None else self.parent.ids
            if list(completion.prompt_ids[: len(before)]) != before:
                raise EngineError("the engine placed the images of an earlier turn elsewhere than before.")
            self.asked, self.context = self.context, list(completion.prompt_ids[len(before) :])
            self.processor = completion.processor
        self.sampled = list(completion.token_ids)
        self.logprobs = list(completion.logprobs)
        self.spans = list(completion.version_spans)

    def replace(self, kept: int, ids: Sequence[int]) -> None:
        """Keep the first `kept` sampled tokens, and put the caller's ids in the place of the others."""
        self.sampled, self.logprobs = self.sampled[:kept], self.logprobs[:kept]
        self.spans = [(v, start, min(end, kept)) for v, start, end in self.spans if start < kept]
        self.replaced, self.ended = list(ids), False

    @property
    def path(self) -> list[Turn]:
        """The turns from the root to this one."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]

    @property
    def conversation(self) -> list[Message]:
        """All messages up to and with this turn."""
        return [
            message
            for one in self.path
            for message in (*one.messages, *([dict(one.reply.message)] if one.reply else []))
        ]

    @property
    def text(self) -> str:
        """All text up to the end of this turn, of completions."""
        return "".join(one.keys[0] + (one.reply.content if one.reply else "") for one in self.path)

    @property
    def ids(self) -> list[int]:
        """All ids up to the end of this turn."""
        ids: list[int] = []
        for turn in self.path:
            ids += turn.context
            ids += turn.sampled
            ids += turn.replaced
        return ids

    @property
    def asked_ids(self) -> list[int]:
        """`ids` with one placeholder for each image."""
        ids: list[int] = []
        for turn in self.path:
            ids += turn.context if turn.asked is None else turn.asked
            ids += turn.sampled
            ids += turn.replaced
        return ids


class Turns:
    """All turns of one rollout."""

    def __init__(self) -> None:
        self.roots: list[Turn] = []
        self.given = 0
        """Tokens that rows have before what was sampled: a branch has those of its path once more."""
        self._begun: dict[Turn, int] = {}

    def __iter__(self) -> Iterator[Turn]:
        """Every turn that has been sampled, in the order in which they were begun."""
        return (turn for turn in self._begun if turn.reply is not None)

    @property
    def leaves(self) -> list[Turn]:
        """The turns that no sampled turn continues."""
        return [turn for turn in self if all(child.reply is None for child in turn.children)]

    def siblings(self, parent: Turn | None) -> list[Turn]:
        """The turns that begin after `parent`; the roots for None."""
        return self.roots if parent is None else parent.children

    def continued(
        self, keys: Sequence[str], offered: str, after: Turn | None = None
    ) -> tuple[Turn | None, int]:
        """The turn that a conversation continues, and how many of its messages are recorded.

        Of turns that are the same to the caller, one that nothing continues yet comes first.
        Args: after: a turn that it is known to continue.
        """
        start = 0 if after is None else len(after.conversation)
        best: tuple[Turn | None, int] = (after, start)
        waiting = [(turn, start) for turn in self.siblings(after)]
        while waiting:
            turn, before = waiting.pop(0)
            end = before + len(turn.keys) + 1
            said = (*turn.keys, turn.reply_key)
            if turn.reply is None or turn.offered != offered or tuple(keys[before:end]) != said:
                continue
            deeper = end > best[1]
            if deeper or (end == best[1] and best[0] is not None and best[0].children and not turn.children):
                best = (turn, end)
            waiting += [(child, end) for child in turn.children]
        return best

    def extended(self, prompt: str | Sequence[int]) -> tuple[Turn | None, str | Sequence[int]]:
        """The completion that a prompt of text or ids goes on from, and what the prompt adds to it."""
        best: tuple[Turn | None, str | Sequence[int]] = (None, prompt)
        for turn in self:
            if turn.offered or turn.reply is None or not turn.reply.content:
                continue
            known = turn.text if isinstance(prompt, str) else turn.ids
            if len(prompt) - len(known) < len(best[1]) and prompt[: len(known)] == known:
                best = (turn, prompt[len(known) :])
        return best

    def diverged(
        self, parent: Turn | None, keys: Sequence[str], offered: str, *, ended: bool = True
    ) -> list[Turn]:
        """The turns after `parent` that were asked what `keys` begin with; `ended`: only those at an end."""
        return [
            turn
            for turn in self.siblings(parent)
            if turn.reply is not None
            and not (ended and turn.children)
            and turn.offered == offered
            and len(keys) > len(turn.keys)
            and tuple(keys[: len(turn.keys)]) == turn.keys
        ]

    def begin(self, turn: Turn) -> None:
        """Add a turn that is about to be sampled."""
        siblings = self.siblings(turn.parent)
        before = 0 if turn.parent is None or not siblings else len(turn.parent.ids)
        self._begun[turn] = before + (len(turn.context) if turn.size is None else turn.size)
        self.given += self._begun[turn]
        siblings.append(turn)

    def forget(self, turn: Turn) -> None:
        """Remove a turn that was not sampled."""
        self.siblings(turn.parent).remove(turn)
        self.given -= self._begun.pop(turn)
