"""The newest verdicts of one operator pipeline: kept, masked, advantage, shaped reward; 9 bytes a row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.errors import RowError
from rft_data.core.words import Verdict

_UNJUDGED, _KEPT, _NOT_KEPT, _MASKED = 0, 1, 2, 3
VERDICTS = tuple(sorted(Verdict))


def check_annotations(annotations: pa.Table, next_seq: int) -> None:
    """Refuse verdicts on rows that are not stored, unknown verdicts, and advantages that are not finite.

    Raises: RowError with every problem.
    """
    seqs = annotations.column("seq")
    advantage = pc.list_flatten(annotations.column("advantage"))
    wrong = {
        f"row numbers outside 0 to {next_seq - 1}": pc.or_kleene(
            pc.less(seqs, 0), pc.greater_equal(seqs, next_seq)
        ),
        f"a verdict other than {', '.join(VERDICTS)}": pc.invert(
            pc.is_in(annotations.column("verdict"), value_set=pa.array(VERDICTS))
        ),
        "an advantage that is null, NaN or infinite": pc.invert(pc.is_finite(advantage).fill_null(False)),
        "a null row number": pc.is_null(seqs),
    }
    found = [what for what, bad in wrong.items() if pc.any(bad).as_py()]
    if found:
        raise RowError(f"annotations hold {'; '.join(found)}. Annotate rows as the buffer returned them.")


class Verdicts:
    """The newest annotation of one pipeline on each row, by row number."""

    def __init__(self, pipeline_hash: str) -> None:
        self._pipeline_hash = pipeline_hash
        self._state = np.zeros(0, np.int8)
        self._advantage = np.zeros(0, np.float32)
        self._shaped = np.zeros(0, np.float32)
        self._per_token: dict[int, npt.NDArray[np.float32]] = {}

    def fold(self, annotations: pa.Table | pa.RecordBatch) -> None:
        """Add newer annotations: columns seq, pipeline_hash, verdict, advantage, masked, shaped_reward."""
        mine = annotations.filter(pc.equal(annotations.column("pipeline_hash"), self._pipeline_hash))
        mine = mine.filter(pc.greater_equal(mine.column("seq"), 0))
        if mine.num_rows == 0:
            return
        seqs = np.asarray(mine.column("seq"))
        self._grow(int(seqs.max()) + 1)
        advantage = pa.table({"advantage": mine.column("advantage")}).combine_chunks().column("advantage")
        sizes = np.asarray(pc.list_value_length(advantage).fill_null(0))
        kept = np.asarray(pc.equal(mine.column("verdict"), Verdict.KEPT)) & (sizes > 0)
        masked = np.asarray(mine.column("masked").fill_null(False))
        self._state[seqs] = np.where(kept, np.where(masked, _MASKED, _KEPT), _NOT_KEPT)
        self._shaped[seqs] = mine.column("shaped_reward").to_numpy(zero_copy_only=False)
        flat = np.asarray(pc.list_flatten(advantage))
        ends = np.cumsum(sizes)
        single = kept & (sizes == 1)
        self._advantage[seqs[single]] = flat[ends[single] - 1]
        for place in np.flatnonzero(~single).tolist():
            seq = int(seqs[place])
            self._per_token.pop(seq, None)
            if kept[place]:
                self._per_token[seq] = flat[ends[place] - sizes[place] : ends[place]]
        for seq in seqs[single].tolist() if self._per_token else ():
            self._per_token.pop(seq, None)

    def _grow(self, rows: int) -> None:
        if rows > len(self._state):
            room = max(rows, 2 * len(self._state), 1024)
            self._state = np.concatenate([self._state, np.zeros(room - len(self._state), np.int8)])
            more = np.zeros(room - len(self._advantage), np.float32)
            self._advantage = np.concatenate([self._advantage, more])
            self._shaped = np.concatenate([self._shaped, np.full_like(more, np.nan)])

    def missing(self, seqs: npt.NDArray[np.int64]) -> list[int]:
        """The rows among `seqs` whose newest verdict is not `kept` with an advantage."""
        known = seqs < len(self._state)
        state = np.where(known, self._state[np.where(known, seqs, 0)] if len(self._state) else 0, _UNJUDGED)
        return [int(seq) for seq in seqs[(state != _KEPT) & (state != _MASKED)]]

    def masked(self, seqs: npt.NDArray[np.int64]) -> pa.Array:
        """bool per row: whether the loss ignores its tokens; all `seqs` must be kept rows."""
        return pa.array(self._state[seqs] == _MASKED)

    def shaped_rewards(self, seqs: npt.NDArray[np.int64]) -> pa.Array:
        """float32 per row, null where the operators left the stored reward; all `seqs` must be kept rows."""
        shaped = self._shaped[seqs]
        return pa.array(shaped, pa.float32(), mask=np.isnan(shaped))

    def advantages(self, seqs: npt.NDArray[np.int64]) -> pa.Array:
        """list<float32> per row: one value, or one per token; all `seqs` must be kept rows."""
        if not self._per_token:
            offsets = pa.array(np.arange(len(seqs) + 1, dtype=np.int32))
            return pa.ListArray.from_arrays(offsets, pa.array(self._advantage[seqs], pa.float32()))
        values: list[npt.NDArray[np.float32]] = [
            self._per_token.get(seq, self._advantage[seq : seq + 1]) for seq in seqs.tolist()
        ]
        return pa.array(values, pa.list_(pa.float32()))
