"""`task_normalization_mapper`: one spelling for prompts that mean the same, message by message."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Literal

import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Mapper

from ops.base import ArrowMapper, append_or_replace
from rft_data.tasks.table import prompt_text

_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
"""Names of roles in other formats, and ours."""
_INVISIBLE = re.compile("[\u200b\u2060\ufeff\u00ad]")
_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_LINE_ENDS = re.compile("\r\n?|\u2028|\u2029|\u0085")
_TRAILING = re.compile(r"[ \t]+$", re.MULTILINE)
_GAPS = re.compile(r"\n{3,}")


@OPERATORS.register_module("task_normalization_mapper")
class TaskNormalizationMapper(ArrowMapper, Mapper):
    """Normalises `messages` (JSON) and `text`, a task's prompt; the answer is left to the reward.

    Unicode to `form`; every exotic space to a plain one and every line end to a newline; no invisible
    characters, no spaces at the end of a line, no more than one empty line in a row, nothing around the
    text. Spaces inside a line stay: they may be code. Roles are in lower case and those of other formats
    renamed (human, gpt); messages without content go. Applying it twice changes nothing more.
    Raises ValueError, which quarantines the task, for a prompt that is empty or is no list of messages, and
    for an edited `text` of several messages.
    """

    required_columns = ("text", "messages")

    def __init__(self, form: Literal["NFC", "NFKC"] = "NFC", *args: object, **kwargs: object) -> None:
        """form: NFC keeps what a reader can tell apart, NFKC also joins compatible forms (full width, ...).

        Raises: ValueError for another form.
        """
        super().__init__(*args, **kwargs)
        if form not in ("NFC", "NFKC"):
            raise ValueError(f"form is {form!r}; wanted 'NFC' or 'NFKC'")
        self.form = form

    def process_table(self, table: pa.Table) -> pa.Table:
        """Replace the prompt's columns."""
        pairs = zip(table["messages"].to_pylist(), table["text"].to_pylist(), strict=True)
        done = [self._normalised(messages, text) for messages, text in pairs]
        table = append_or_replace(table, "messages", pa.array([made for made, _ in done], pa.string()))
        return append_or_replace(table, "text", pa.array([text for _, text in done], pa.string()))

    def _normalised(self, encoded: str, text: str) -> tuple[str, str]:
        messages = json.loads(encoded)
        if not isinstance(messages, list) or not all(
            isinstance(m, dict) and "content" in m for m in messages
        ):
            raise ValueError(f"'messages' is {encoded[:60]!r}; wanted a list of messages with 'content'")
        if text != prompt_text(messages):  # an earlier mapper edited the text
            if len(messages) != 1:
                raise ValueError(f"the text of a prompt of {len(messages)} messages was edited")
            messages = [{**message, "content": text} for message in messages]
        made = [self._message(message) for message in messages]
        made = [message for message in made if message["content"]]
        if not made:
            raise ValueError("the prompt is empty")
        return json.dumps(made, ensure_ascii=False), prompt_text(made)

    def _message(self, message: dict[str, object]) -> dict[str, object]:
        role = str(message.get("role", "user")).strip().lower()
        content = message["content"]
        if isinstance(content, str):
            content = self._clean(content)
        elif isinstance(content, list):
            content = [self._part(part) for part in content]
        return {**message, "role": _ROLES.get(role, role), "content": content}

    def _part(self, part: object) -> object:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return {**part, "text": self._clean(part["text"])}
        return part

    def _clean(self, text: str) -> str:
        text = _SPACES.sub(" ", _INVISIBLE.sub("", _LINE_ENDS.sub("\n", text)))
        text = _GAPS.sub("\n\n", _TRAILING.sub("", unicodedata.normalize(self.form, text)))
        return text.strip()
