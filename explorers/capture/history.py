"""Place where a prompt continues what was sampled: compared by token ids, then by text, then by messages.

A server renders the whole conversation for every request and tokenises it anew. Of what it renders, the turns
that were sampled are replaced by their sampled ids; only what is new is tokenised. A turn with tool calls is
often rendered in other words than it was sampled in (spaces of JSON, line breaks): its message tells it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from explorers.conversations.drift import SHORT
from explorers.conversations.messages import key
from explorers.conversations.shape import broken, form
from explorers.conversations.template import THINK_CLOSE, THINK_OPEN, ChatTemplate
from explorers.conversations.turns import Turn, Turns
from rft_data.core.errors import RowError
from rft_data.core.rows import Message
from rft_data.core.words import Drift, TemplatePolicy


@dataclass(frozen=True, slots=True)
class Continued:
    """The turn that a prompt continues."""

    parent: Turn | None
    """The turn that it continues; None: it begins another row."""
    added: list[int]
    """Ids after those of the parent."""
    drift: Drift


@dataclass(frozen=True, slots=True)
class Chat:
    """The messages and tools from which a prompt was rendered."""

    messages: Sequence[Message]
    """In the form of rows."""
    tools: Sequence[Mapping[str, object]] | None
    offered: str
    """The tools as canonical JSON."""
    keys: tuple[str, ...]
    """Of the messages; see `compared`."""


@dataclass(slots=True)
class History:
    """Finds the place of prompts among the turns of one trajectory."""

    turns: Turns
    template: ChatTemplate
    policy: TemplatePolicy
    _contexts: dict[Turn, str] = field(default_factory=dict)
    """The texts of their contexts: each prompt is compared with all of them."""

    def forget(self, turn: Turn) -> None:
        """A turn was removed."""
        self._contexts.pop(turn, None)

    def continued(self, prompt: Sequence[int], chat: Chat | None = None) -> Continued:
        """Place where `prompt` goes on; a short difference in the last turn is put into that turn.

        `chat`: the messages that it was rendered from, where these are known.
        Raises: RowError where the history drifted and the policy is to refuse that.
        """
        parent, known = self._by_ids(prompt)
        after = [turn for turn in self.turns.siblings(parent) if turn.reply is not None]
        if not after or known == len(prompt):
            return Continued(parent, list(prompt[known:]), Drift.EXACT)
        parent, left, drifted = self._deepest(parent, self._text(prompt[known:]), chat)
        if parent is not None and _length(parent) > known:
            known = -1
        if not drifted:
            return Continued(parent, self._added(prompt, known, left), Drift.EXACT)
        if self.policy is TemplatePolicy.REFUSE:
            raise RowError(
                "the history in 'messages' differs from what was sampled, and the template policy is refuse; "
                "send the turns back as they came, or serve with the policy fork or keep_thinking."
            )
        for turn in drifted:
            after_it = self._corrected(turn, left)
            if after_it is not None:
                return Continued(turn, self.template.ids(after_it), Drift.MASKED)
        return Continued(parent, self._added(prompt, known, left), Drift.FORKED)

    def _deepest(
        self, parent: Turn | None, left: str, chat: Chat | None
    ) -> tuple[Turn | None, str, list[Turn]]:
        """The deepest turn that is gone on from, the text after it, and the turns that `left` differs in."""
        whole = left
        while True:
            deeper, rest = self._by_text(parent, left)
            if self._longer(deeper, parent):
                parent, left = deeper, rest
            drifted = self._drifted(parent, left)
            after = self._by_messages(parent, chat) if drifted and chat is not None else None
            if after is None or not whole.endswith(after[1]):
                return parent, left, drifted
            parent, left = after

    def _by_messages(self, parent: Turn | None, chat: Chat) -> tuple[Turn, str] | None:
        """The deepest turn after `parent` that has the messages of a chat, and the text after it.

        None where there is none, or where the template writes what was before it in another way by now.
        """
        best, known = self.turns.continued(chat.keys, chat.offered, parent)
        if best is None or best is parent or best.reply is None:
            return None
        try:
            return self._after_messages(best, best.reply.message, chat, known)
        except RowError:  # ours cannot render what the server's did
            return None

    def _after_messages(self, best: Turn, said: Message, chat: Chat, known: int) -> tuple[Turn, str] | None:
        """A turn and the text after it, where the template goes on as it began. Raises: RowError."""
        added = list(map(_with_text, chat.messages[known:]))
        history = [*best.conversation, *added]
        forms, last = tuple(map(form, history)), len(best.conversation) - 1
        keeps = self.policy is TemplatePolicy.KEEP_THINKING
        if not keeps and broken(self.template, forms, last, chat.tools is not None):
            return None
        return best, self._text(self.template.between(said, added, chat.tools, ended=best.ended))

    def _added(self, prompt: Sequence[int], known: int, left: str) -> list[int]:
        """The ids after the parent's: as they came, or of the text `left` where the parent has other ids."""
        return list(prompt[known:]) if known >= 0 else self.template.ids(left)

    def _by_ids(self, prompt: Sequence[int]) -> tuple[Turn | None, int]:
        """The deepest turn whose ids the prompt begins with, and how many these are."""
        best: tuple[Turn | None, int] = (None, 0)
        waiting: list[tuple[Turn, int]] = [(turn, 0) for turn in self.turns.roots]
        while waiting:
            turn, start = waiting.pop()
            ids = _own_ids(turn)
            end = start + len(ids)
            if turn.reply is None or list(prompt[start:end]) != ids:
                continue
            if end > best[1]:
                best = (turn, end)
            waiting += [(child, end) for child in turn.children]
        return best

    def _by_text(self, parent: Turn | None, left: str) -> tuple[Turn | None, str]:
        """The deepest turn after `parent` whose text `left` begins with, and the text after it."""
        best: tuple[Turn | None, str] = (parent, left)
        waiting = [(turn, left) for turn in self.turns.siblings(parent)]
        while waiting:
            turn, text = waiting.pop()
            rest = None if turn.reply is None else self._after(turn, text)
            if rest is None:
                continue
            if len(rest) < len(best[1]):
                best = (turn, rest)
            waiting += [(child, rest) for child in turn.children]
        return best

    def _after(self, turn: Turn, text: str) -> str | None:
        """The rest of `text` after the turn; None when it does not begin with the turn's text."""
        context, thinks = self._context(turn), self.policy is TemplatePolicy.KEEP_THINKING
        if not thinks and not text.startswith(context):
            return None
        said = self._text([*turn.sampled, *turn.replaced])
        if text.startswith(context + said):
            return text[len(context) + len(said) :]
        if not thinks:
            return None
        return _after_unthought(context, said, text)

    def _drifted(self, parent: Turn | None, left: str) -> list[Turn]:
        """The turns after `parent` whose prompt `left` begins with, but not with what was sampled then."""
        contexts = [
            (turn, self._context(turn)) for turn in self.turns.siblings(parent) if turn.reply is not None
        ]
        return [turn for turn, context in contexts if left.startswith(context) and len(left) > len(context)]

    def _corrected(self, turn: Turn, left: str) -> str | None:
        """Keep of a turn what `left` has of it; what follows that. None where it differs by too much."""
        if turn.children or turn.replaced:
            return None
        text = left[len(self._context(turn)) :]
        for kept in range(len(turn.sampled) - 1, max(0, len(turn.sampled) - SHORT - 1), -1):
            said = self._text(turn.sampled[:kept])
            if text.startswith(said):
                turn.replace(kept, [])
                return text[len(said) :]
        return None

    @staticmethod
    def _longer(deeper: Turn | None, parent: Turn | None) -> bool:
        return deeper is not None and (parent is None or len(deeper.path) > len(parent.path))

    def _context(self, turn: Turn) -> str:
        if turn not in self._contexts:
            self._contexts[turn] = self._text(turn.context)
        return self._contexts[turn]

    def _text(self, ids: Sequence[int]) -> str:
        text: str = self.template.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def compared(message: Message) -> str:
    """Identity of a client's message; white space beside calls does not count."""
    message = _with_text(message)
    if message.get("tool_calls") and isinstance(message["content"], str):
        message = {**message, "content": message["content"].strip()}
    return key(message)


def _with_text(message: Message) -> Message:
    """The same message, whose parts are one text where all of them are text."""
    parts = message["content"]
    if not isinstance(parts, list) or not all(part.get("type") == "text" for part in parts):
        return message
    return {**message, "content": "".join(str(part.get("text", "")) for part in parts)}


def _length(turn: Turn) -> int:
    return sum(len(_own_ids(one)) for one in turn.path)


def _own_ids(turn: Turn) -> list[int]:
    return [*turn.context, *turn.sampled, *turn.replaced]


def _after_unthought(context: str, said: str, text: str) -> str | None:
    """The rest of `text` after a turn without its thinking; None when it is not that turn."""
    opened = context.rstrip().endswith(THINK_OPEN)
    if (not opened and not said.lstrip().startswith(THINK_OPEN)) or THINK_CLOSE not in said:
        return None
    before = context[: context.rindex(THINK_OPEN)] if opened else context
    answer = said.partition(THINK_CLOSE)[2].lstrip("\n")
    if not text.startswith(before):
        return None
    rest = text[len(before) :].lstrip("\n")
    if rest.startswith(THINK_OPEN) and THINK_CLOSE in rest:  # the template shows an empty block
        rest = rest.partition(THINK_CLOSE)[2].lstrip("\n")
    return rest[len(answer) :] if answer and rest.startswith(answer) else None
