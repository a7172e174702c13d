"""Stop strings: texts that end a completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class StopTexts:
    """Finds out which sampled token completes one of the texts."""

    def __init__(self, decode: Callable[[list[int]], str], texts: Sequence[str]) -> None:
        """`decode`: ids to text, special tokens included."""
        self._decode = decode
        self._texts = texts
        self._width = 4 * max(len(text) for text in texts) + 4  # a character takes up to four tokens

    def completed(self, token_ids: Sequence[int]) -> bool:
        """Whether the newest token completes a text."""
        window = list(token_ids[-self._width :])
        before, now = self._decode(window[:-1]), self._decode(window)
        return any(now.count(text) > before.count(text) for text in self._texts)
