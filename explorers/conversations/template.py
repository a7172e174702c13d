"""A model's chat template, used so that no token of a conversation's history is made twice.

The first prompt is rendered whole. Each later one is only what the template puts between a sampled turn and
the next: the end of the turn, the appended messages and the opening of the next turn. That text is cut out of
a short synthetic conversation and tokenised alone, so no token merges over the boundary.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from rft_data.core.errors import RecipeError, RowError
from rft_data.core.images import for_template
from rft_data.core.rows import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "rft7content7mark"
"""Content of the synthetic turn; what follows it is what a template puts after a turn."""
_LONG = 1 << 14
"""Characters of a text whose ids take milliseconds to make."""
_OURS = ("messages", "tools", "add_generation_prompt")
"""Variables that a template is given by us."""
_ASK: Message = {"role": "user", "content": "u"}
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


class ChatTemplate:
    """Renders prompts and what comes between turns."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, object] | None = None
    ) -> None:
        """`arguments`: what the template takes beside messages and tools (`enable_thinking`, ...).

        A tokenizer without a chat template can only complete texts.
        Raises: RecipeError for an argument that the template does not use; RowError for a template that
            cannot render a user's and an assistant's turn.
        """
        self.tokenizer = tokenizer
        self._arguments = template_arguments(tokenizer, arguments)
        self._special = frozenset(tokenizer.all_special_ids)
        self.special_texts = sorted(tokenizer.all_special_tokens, key=len, reverse=True)
        """Texts of the special tokens, which are no part of what a turn says."""
        self._under_way: dict[tuple[str, bool], asyncio.Future[list[int]]] = {}
        self._end = self._end_token()
        self.renders_thinking = tokenizer.chat_template is not None and self._renders_thinking()
        """Whether it knows `reasoning_content`; else thinking stays in the content."""

    # --- ids ---------------------------------------------------------------------------------------

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]] | None) -> list[int]:
        """The ids of a whole prompt, for the first turn of a row.

        Raises: RowError when the template refuses the messages.
        """
        return self.ids(self.text(messages, tools, opened=True))

    def need_tools(self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]]) -> None:
        """Raises: RowError when the template has no place for the tools that a task offers."""
        if self.text(messages, tools, opened=True) == self.text(messages, None, opened=True):
            raise RowError(
                "the task offers tools, and the model's chat template has no place for them; take a model "
                "whose template renders tools, or leave out 'tools' of the taskset."
            )

    def between(
        self,
        last: Message,
        appended: Sequence[Message],
        tools: Sequence[Mapping[str, object]] | None,
        *,
        ended: bool,
    ) -> list[int]:
        """The ids between a sampled turn and the next one.

        Args:
            last: the sampled turn; of it, only whether it has calls counts.
            appended: the messages after it.
            tools: what the conversation offers.
            ended: whether the turn's end token was sampled; else it is among the ids.

        Raises: RowError when the template refuses the messages.
        """
        return self.after_end(self.ids(self.tail(last, appended, tools)), ended=ended)

    def after_end(self, ids: list[int], *, ended: bool) -> list[int]:
        """The ids of what follows a turn, without its end token where that was sampled."""
        return ids[1:] if ended and ids and ids[0] in self._special else ids

    def ids(self, text: str) -> list[int]:
        """The ids of a text, with nothing added."""
        return self._ids(text, special=False)

    async def ids_apart(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text; those of a long one are made in a thread, once for all that wait for them.

        Args: special: with what the tokenizer puts around a text that is no conversation.
        """
        if len(text) < _LONG:
            return self._ids(text, special)
        asked = (text, special)
        if asked not in self._under_way:
            made = asyncio.ensure_future(asyncio.to_thread(self._ids, text, special))
            made.add_done_callback(lambda _: self._under_way.pop(asked))
            self._under_way[asked] = made
        return await asyncio.shield(self._under_way[asked])

    @cached_property
    def longest(self) -> int:
        """The most characters of a token."""
        return max(map(len, self.tokenizer.get_vocab()))

    def _ids(self, text: str, special: bool) -> list[int]:
        found: list[int] = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        return found

    def has_ended(self, token_ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Whether a turn that was not cut off has its end token; else one of the texts `stop` ended it."""
        if not token_ids or token_ids[-1] not in self._special:
            return False
        last: str = self.tokenizer.decode([token_ids[-1]], skip_special_tokens=False)
        return last == self._end or not any(last in text for text in stop)

    # --- texts -------------------------------------------------------------------------------------

    def text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]] | None, *, opened: bool
    ) -> str:
        """A conversation as the template writes it; `opened`: with the opening of the next turn.

        Raises: RowError when the template refuses the messages.
        """
        from jinja2.exceptions import TemplateError

        try:
            rendered: str = self.tokenizer.apply_chat_template(
                for_template(messages),
                tools=list(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=opened,
                **self._arguments,
            )
        except (TemplateError, TypeError, ValueError) as err:
            roles = " ".join(message["role"] for message in messages)
            raise RowError(
                f"the chat template cannot render the roles [{roles}] ({type(err).__name__}: {err}); "
                "`rft debug template MODEL` says what it can render."
            ) from err
        return rendered

    def tail(
        self, last: Message, appended: Sequence[Message], tools: Sequence[Mapping[str, object]] | None
    ) -> str:
        """Text that the template puts between the sampled text of `last` and that of the next turn.

        Raises: RowError when the template refuses the messages, or shows nothing of the turn.
        """
        calls = last.get("tool_calls")
        if not calls:
            plain = self.text([_ASK, _turn(), *appended], tools, opened=True)
            return _after_mark(plain)
        turn = {**_turn(), "tool_calls": calls}
        before = self.text([_ASK, turn], tools, opened=False)
        whole = self.text([_ASK, turn, *appended], tools, opened=True)
        if not whole.startswith(before):
            before, whole = _after_mark(before), _after_mark(whole)
        if not whole.startswith(before):
            raise RowError(
                "the chat template renders a turn with tool calls in another way when messages follow it; "
                "`rft debug template MODEL` shows it."
            )
        return self.ending(tools) + whole[len(before) :]

    def ending(self, tools: Sequence[Mapping[str, object]] | None = None) -> str:
        """Text that the template puts after a turn: its end token, and often a line break."""
        return _after_mark(self.text([_ASK, _turn()], tools, opened=False))

    def opens_thinking(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt ends inside a block of thinking."""
        text: str = self.tokenizer.decode(list(prompt_ids[-8:]), skip_special_tokens=False)
        return text.rstrip().endswith(THINK_OPEN)

    def _end_token(self) -> str:
        """The text of the special token that ends a turn; empty when there is none."""
        if self.tokenizer.chat_template is None:
            return ""
        ids = self.ids(self.ending())
        text: str = self.tokenizer.decode(ids[:1], skip_special_tokens=False)
        return text if ids and ids[0] in self._special else ""

    def _renders_thinking(self) -> bool:
        thought = {**_turn(), "reasoning_content": "rft7thinking7mark"}
        return "rft7thinking7mark" in self.text([_ASK, thought], None, opened=False)


def template_arguments(
    tokenizer: PreTrainedTokenizerBase, given: Mapping[str, object] | None
) -> dict[str, object]:
    """The arguments of a chat template.

    Raises: RecipeError for one that the template does not use: a template ignores what it does not know.
    """
    source = str(tokenizer.chat_template)
    for name in given or {}:
        if name in _OURS or not re.search(rf"\b{re.escape(name)}\b", source):
            raise RecipeError(
                f"the model's chat template takes no argument '{name}', so it would be ignored; remove it, "
                "or correct its name."
            )
    return dict(given or {})


def no_template(given: Mapping[str, object] | None) -> None:
    """Raises: RecipeError for arguments of a chat template where the endpoint renders the messages."""
    if given:
        raise RecipeError(
            f"'chat_template_kwargs' {dict(given)} are of a template that is rendered here, and the engine "
            "'openai' sends messages; an endpoint that takes them has them in 'request' of its options."
        )


def _turn() -> Message:
    return {"role": "assistant", "content": MARK}


def _after_mark(text: str) -> str:
    _, found, rest = text.partition(MARK)
    if not found:
        raise RowError(
            "the chat template does not show the content of an assistant's turn; a conversation of several "
            "turns needs one that does."
        )
    return rest
