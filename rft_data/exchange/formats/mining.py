"""Preference pairs mined from groups: the best rollout of a group against its worst, by reward.

The first pass reads rewards and keeps four numbers a group; the second reads the rows chosen. The reward is
the effective one (`core/effective_reward.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from rft_data.core.codec import to_experiences
from rft_data.core.effective_reward import ShapedRewards
from rft_data.core.errors import RowError
from rft_data.core.filters import Filter
from rft_data.core.reader import BufferReader
from rft_data.core.rows import Experience, PreferencePair
from rft_data.core.words import MEASURING_SOURCES, PairSource

_PAIRS = 256
_COLUMNS = ["seq", "group_id", "reward", "source"]


def mined_pairs(
    buffer: BufferReader, where: Filter | None, margin: float
) -> Iterator[PreferencePair | RowError]:
    """For each group a pair, if its rewards differ by more than `margin`, else the reason why not.

    Of rows with equal rewards the one stored first is taken. Evaluation and probe rows are left out.
    """
    shaped = ShapedRewards(buffer)
    found = _ends(buffer, where, shaped)
    wanted = [(best, worst) for high, best, low, worst in found.values() if high - low > margin]
    for _ in range(len(found) - len(wanted)):
        yield RowError(f"no pair in the group: its rewards differ by no more than {margin:g}")
    for start in range(0, len(wanted), _PAIRS):
        some = wanted[start : start + _PAIRS]
        rows = to_experiences(shaped.counted(buffer.take([seq for pair in some for seq in pair])))
        for place in range(0, len(rows), 2):
            yield mined_pair(rows[place], rows[place + 1])


def most_pairs(buffer: BufferReader, where: Filter | None, margin: float) -> int:
    """How many groups have rewards that differ by more than `margin`: their texts are not looked at."""
    ends = _ends(buffer, where, ShapedRewards(buffer)).values()
    return sum(high - low > margin for high, _, low, _ in ends)


def _ends(
    buffer: BufferReader, where: Filter | None, shaped: ShapedRewards
) -> dict[str, tuple[float, int, float, int]]:
    """Highest reward and its row, lowest reward and its row, of each group."""
    found: dict[str, tuple[float, int, float, int]] = {}
    for batch in buffer.batches("experiences", columns=_COLUMNS, where=where):
        columns = (batch["seq"], batch["group_id"], shaped.effective(batch), batch["source"])
        for seq, group, reward, source in zip(*(column.to_pylist() for column in columns), strict=True):
            if reward is None or source in MEASURING_SOURCES:
                continue
            high, best, low, worst = found.get(group, (reward, seq, reward, seq))
            if reward > high:
                high, best = reward, seq
            if reward < low:
                low, worst = reward, seq
            found[group] = (high, best, low, worst)
    return found


def mined_pair(best: Experience, worst: Experience) -> PreferencePair | RowError:
    """Two rows of one group as a pair, or why they are none: a pair has one prompt and two answers.

    Their scores are the rewards that the rows hold.
    """
    prompt = best.messages[: best.prompt_messages]
    chosen, rejected = best.messages[best.prompt_messages :], worst.messages[worst.prompt_messages :]
    if prompt != worst.messages[: worst.prompt_messages]:
        return RowError("the group's best and worst rows have different prompts (a step-wise workflow)")
    if not prompt or not chosen or not rejected:
        return RowError("the group's rows have no messages, or no prompt")
    if chosen == rejected:
        return RowError("the group's best and worst rows have the same answer")
    return PreferencePair(
        source=PairSource.MINED,
        taskset=best.taskset,
        task_id=best.task_id,
        messages=tuple(prompt),
        chosen=tuple(chosen),
        rejected=tuple(rejected),
        tools=best.tools,
        chosen_experience_id=best.experience_id,
        rejected_experience_id=worst.experience_id,
        chosen_score=best.reward,
        rejected_score=worst.reward,
    )
