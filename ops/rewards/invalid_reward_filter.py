"""`invalid_reward_filter`: drops rollouts whose reward cannot be used."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import GROUP_KEY, ArrowFilter, Judgement
from ops.rewards.effective import SHAPED
from ops.rollouts import ROLLOUT_COLUMNS, Ints, multi_turn_rollouts, torn
from rft_data.core.effective_reward import effective_rewards


@OPERATORS.register_module("invalid_reward_filter")
class InvalidRewardFilter(ArrowFilter, Pipeline):
    """Drops a rollout whose reward is null, NaN or infinite, or that has an `unscored_reason`.

    The reward is `shaped_reward` where an operator before set it, whatever the reason, else `reward`.
    The other operators on rewards refuse (ValueError) what is not finite; this one, put first, takes it
    out with its reason. Of a rollout of several turns (a `turn` above 0) the last one's reward decides for
    all: earlier turns may have no reward or a withdrawn one, but not NaN or an infinity. Groups may become
    ragged; a group of one goes or stays like any other rollout.
    """

    group_key = GROUP_KEY
    required_columns = (GROUP_KEY, "reward")
    optional_columns = (SHAPED, "unscored_reason", *ROLLOUT_COLUMNS)

    def __init__(self, *args: object, **kwargs: object) -> None:
        """No arguments of its own."""
        super().__init__(*args, **kwargs)

    def judge(self, table: pa.Table) -> Judgement:
        """Keep rows with a finite reward and no `unscored_reason`."""
        rewards = effective_rewards(table).cast(pa.float64())
        values = rewards.to_numpy()
        causes = _causes(table)
        unscored = pc.fill_null(pc.greater(pc.utf8_length(causes), 0), False).to_numpy(zero_copy_only=False)
        keep = np.isfinite(values) & ~unscored
        known = rewards.is_valid().to_numpy()
        turns = multi_turn_rollouts(table)
        if turns is not None:
            keep = np.where(_is_last(turns, table["turn"].to_numpy()), keep, np.isfinite(values) | ~known)
        dropped = np.flatnonzero(~keep)
        reasons = [
            f"reward {value:g}{' was not scored: ' + cause if cause else ' is not finite'}"
            if scored
            else f"no reward: {cause or 'not scored'}"
            for value, scored, cause in zip(
                values[dropped], known[dropped], causes.take(pa.array(dropped)).to_pylist(), strict=True
            )
        ]
        if turns is None:
            return Judgement(keep, reasons)
        lost = dict(zip(dropped.tolist(), reasons, strict=True))
        lost |= torn(turns, np.flatnonzero(keep), lost)
        keep[list(lost)] = False
        return Judgement(keep, [lost[row] for row in sorted(lost)])


def _causes(table: pa.Table) -> pa.ChunkedArray | pa.Array:
    """The reason why each row has no reward, (N,) strings; null where it has one or none is stored."""
    if "unscored_reason" not in table.column_names:
        return pa.nulls(table.num_rows, pa.string())
    causes = table["unscored_reason"].cast(pa.string())
    if SHAPED in table.column_names:
        causes = pc.if_else(table[SHAPED].is_valid(), pa.scalar(None, pa.string()), causes)
    return causes


def _is_last(turns: Ints, turn: Ints) -> npt.NDArray[np.bool_]:
    """Whether no later turn of a row's rollout is there; `turns`: of `multi_turn_rollouts`."""
    order = np.lexsort((turn, turns))
    ordered = turns[order]
    last = np.ones(len(turns), bool)
    last[order[:-1]] = (ordered[:-1] != ordered[1:]) | (ordered[:-1] < 0)
    return last
