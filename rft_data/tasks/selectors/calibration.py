"""How good a selector's predictions are: predicted pass rates compared with the measured ones.

The mean of a task's last group, the estimator of most systems, is measured too. No choice depends on this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from rft_data.tasks.selectors.packing import pack, unpack

_WINDOW = 512
"""Groups over which the rank correlation is taken."""
_BINS = 10


class Calibration:
    """Streaming Brier scores, reliability by decile, and Spearman's rank correlation.

    Brier score: mean over rollouts of (prediction - reward)^2 in [0, 1], lower is better; it contains the
    noise of the rollouts themselves, so even a perfect prediction p scores p(1 - p). The last-mean
    estimator predicts the mean reward of the task's last group; for a first visit, the mean over all
    tasks so far (0.5 before the first group).
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._groups = 0
        self._rollouts = 0
        self._rewards = 0.0
        self._squares = [0.0, 0.0]
        """Summed squared error: ours, the last mean's."""
        self._deciles = [[0.0, 0.0, 0.0] for _ in range(_BINS)]
        """Groups, summed prediction and summed mean reward by decile of the prediction."""
        self._recent: deque[tuple[float, float]] = deque(maxlen=_WINDOW)

    def record(
        self, predicted: float, last_mean: float | None, rewards: float, squares: float, n: int
    ) -> None:
        """Add a group: its prediction beforehand, and the sums of its n rewards and of their squares."""
        if last_mean is None:
            last_mean = self._rewards / self._rollouts if self._rollouts else 0.5
        self._squares[0] += n * predicted * predicted - 2 * predicted * rewards + squares
        self._squares[1] += n * last_mean * last_mean - 2 * last_mean * rewards + squares
        realised = rewards / n
        decile = self._deciles[min(int(predicted * _BINS), _BINS - 1)]
        decile[0] += 1.0
        decile[1] += predicted
        decile[2] += realised
        self._recent.append((predicted, realised))
        self._groups += 1
        self._rollouts += n
        self._rewards += rewards

    def table(self) -> list[dict[str, float]]:
        """Groups, mean prediction and mean reward by decile of the prediction; empty deciles are left out."""
        return [
            {"groups": groups, "predicted": predicted / groups, "realised": realised / groups}
            for groups, predicted, realised in self._deciles
            if groups
        ]

    def metrics(self) -> dict[str, float]:
        """`brier`, `brier_last_mean` and, where both vary, `spearman`; empty before the first group."""
        if not self._rollouts:
            return {}
        found = {
            "brier": self._squares[0] / self._rollouts,
            "brier_last_mean": self._squares[1] / self._rollouts,
        }
        recent = np.array(self._recent)
        ranks = [_ranks(recent[:, side]) for side in (0, 1)]
        if all(np.ptp(side) > 0 for side in ranks):
            found["spearman"] = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
        return found

    def state_dict(self) -> dict[str, object]:
        """The whole state as JSON values of a fixed size (about 11 kB)."""
        return {
            "groups": self._groups,
            "rollouts": self._rollouts,
            "rewards": self._rewards,
            "squares": list(self._squares),
            "deciles": pack(np.array(self._deciles)),
            "recent": pack(np.array(self._recent, np.float64)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._groups, self._rollouts = int(state["groups"]), int(state["rollouts"])
        self._rewards, self._squares = float(state["rewards"]), list(state["squares"])
        self._deciles = unpack(state["deciles"], np.float64).reshape(_BINS, 3).tolist()
        recent = unpack(state["recent"], np.float64).reshape(-1, 2).tolist()
        self._recent = deque(map(tuple, recent), maxlen=_WINDOW)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values sharing the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + last - 1) / 2)[which]
