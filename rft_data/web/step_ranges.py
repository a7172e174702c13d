"""The range of steps that a chart shows, and the ranges that it links to."""

from __future__ import annotations

from collections.abc import Iterator

Steps = tuple[int, int]
"""First and last step, both shown."""


def zooms(all_steps: Steps, first: int | None, last: int | None) -> Iterator[tuple[str, Steps]]:
    """Words and steps of each link that would show others than are shown now.

    Args: all_steps: that there are; first, last: what was asked for, None: all.
    """
    oldest, newest = all_steps
    low = oldest if first is None else max(first, oldest)
    high = newest if last is None else min(last, newest)
    if low > high:
        yield "all steps", all_steps
        return
    width = high - low
    if width >= 4:
        middle = low + width // 2
        yield "first half", (low, middle)
        yield "second half", (middle, high)
    if low > oldest:
        yield "earlier", (max(oldest, low - width - 1), low)
    if high < newest:
        yield "later", (high, min(newest, high + width + 1))
    if (low, high) != all_steps:
        yield "all steps", all_steps
