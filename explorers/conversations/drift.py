"""What happens when a caller's history is not what was sampled: a short difference is put into the row."""

from __future__ import annotations

from dataclasses import replace

from explorers.conversations.messages import key
from explorers.conversations.template import ChatTemplate
from explorers.conversations.turns import Turn
from rft_data.core.rows import Message

SHORT = 64
"""Most sampled tokens that a difference may cost a row; a longer one begins another row."""


def corrected(turn: Turn, said: Message, template: ChatTemplate) -> bool:
    """Put what the caller has of a turn in the place of the sampled text, from the first difference on.

    The tokens before it keep their loss, those after it are gone, and the caller's have none. False, and
    nothing changes, when the difference is longer than SHORT tokens, at the very beginning, or in tool calls.
    """
    if turn.reply is None or said.get("tool_calls") or turn.reply.tool_calls:
        return False
    old, new = turn.reply.message["content"], said["content"]
    sampled = turn.sampled[:-1] if turn.ended else turn.sampled
    raw = _text(template, sampled)
    start = raw.rfind(old) if old else -1
    if said["role"] != "assistant" or not isinstance(new, str) or start < 0:
        return False
    message = {**turn.reply.message, "content": new}
    if key(message) != key(said):  # more than the text differs: it would not be found again
        return False
    wanted = raw[:start] + new
    for kept in range(len(sampled), max(0, len(sampled) - SHORT - 1), -1):
        if wanted.startswith(_text(template, sampled[:kept])):
            rest = wanted[len(_text(template, sampled[:kept])) :]
            turn.replace(kept, template.ids(rest) if rest else [])
            turn.reply = replace(turn.reply, content=new, message=message)
            turn.reply_key = key(message)
            return True
    return False


def _text(template: ChatTemplate, ids: list[int]) -> str:
    text: str = template.tokenizer.decode(ids, skip_special_tokens=False)
    return text
