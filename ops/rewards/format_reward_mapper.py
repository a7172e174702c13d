"""`format_reward_mapper`: rewards completions that follow a format."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from data_juicer.ops.base_op import OPERATORS, Mapper

from ops.base import ArrowMapper, append_or_replace
from ops.rewards.effective import effective_rewards, with_shaped_reward

_BOX = r"\boxed{"
_TAG = re.compile(r"[A-Za-z][\w-]*")
_NESTED = 4


@OPERATORS.register_module("format_reward_mapper")
class FormatRewardMapper(ArrowMapper, Mapper):
    r"""Writes `format_reward`: 1.0 when `completion_text` follows every rule given, else 0.0.

    tags [think, answer]: `<think>...</think><answer>...</answer>` and nothing else but white space, each tag
    once, none empty (DeepSeek-R1, arXiv:2501.12948). boxed: exactly one `\boxed{...}`, not empty, braces
    balanced (up to 4 deep inside). pattern: found anywhere; anchor it with \A and \z for the whole text.
    With a weight, `shaped_reward` becomes (shaped_reward where set, else reward) + weight * format_reward; a
    missing reward stays missing. An empty or missing text gets 0.0. Groups do not matter.
    Patterns are RE2's: matching takes time linear in the text, and there is no look-around and no
    back-reference.
    """

    optional_columns = ("reward", "shaped_reward", "format_reward")

    def __init__(
        self,
        pattern: str | None = None,
        tags: Sequence[str] = (),
        boxed: bool = False,
        weight: float = 0.0,
        *args: object,
        **kwargs: object,
    ) -> None:
        """weight: units of reward for a kept format; 0 leaves the reward alone.

        Raises: ValueError without any rule, for a tag that is no name, or a pattern RE2 does not accept.
        """
        super().__init__(*args, **kwargs)
        if pattern is None and not tags and not boxed:
            raise ValueError("no rule is given; wanted at least one of pattern, tags and boxed")
        if len(set(tags)) < len(tags) or not all(_TAG.fullmatch(tag) for tag in tags):
            raise ValueError(
                f"tags are {list(tags)}; wanted distinct names such as think, without the brackets"
            )
        if not np.isfinite(weight):
            raise ValueError(f"weight is {weight}; wanted a finite number")
        self.pattern = pattern
        self.tags = tuple(tags)
        self.boxed = boxed
        self.weight = weight
        self._once, self._patterns = _rules(self.tags, boxed, pattern)
        self._kept(pa.array(["x"]))
        self.required_columns = ("completion_text", *(("reward",) if weight else ()))

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the format reward, and the shaped reward when it has a weight."""
        kept = self._kept(table["completion_text"]).astype(np.float64)
        table = append_or_replace(table, "format_reward", pa.array(kept, pa.float32()))
        if not self.weight:
            return table
        return with_shaped_reward(table, effective_rewards(table) + self.weight * kept)

    def _kept(self, column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.bool_]:
        texts = pc.fill_null(column, "")
        kept = np.ones(len(texts), np.bool_)
        for text in self._once:
            kept &= pc.equal(pc.count_substring(texts, text), 1).to_numpy(zero_copy_only=False)
        for pattern in self._patterns:
            kept &= pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
        return kept


def _rules(tags: Sequence[str], boxed: bool, pattern: str | None) -> tuple[list[str], list[str]]:
    """Texts that must occur exactly once, and patterns that must match."""
    once = [text for tag in tags for text in (f"<{tag}>", f"</{tag}>")]
    patterns = [] if pattern is None else [pattern]
    if tags:
        parts = (rf"<{tag}>(?s:.*?)\S(?s:.*?)</{tag}>\s*" for tag in tags)
        patterns.append(rf"\A\s*{''.join(parts)}\z")
    if boxed:
        inside = r"[^{}]"
        for _ in range(_NESTED):
            inside = rf"(?:[^{{}}]|\{{{inside}*\}})"
        once.append(_BOX)
        patterns.append(rf"\\boxed\{{{inside}+\}}")
    return once, patterns
