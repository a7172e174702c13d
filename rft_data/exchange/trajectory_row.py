"""The stored row of a trajectory, found by the id that the client of its server knows."""

from __future__ import annotations

import json

from rft_data.core.canonical import canonical_json
from rft_data.core.errors import RowError
from rft_data.core.filters import Compare, Contains, Or
from rft_data.core.reader import BufferReader
from rft_data.core.words import TRAJECTORY

_COLUMNS = ["experience_id", "group_id", "member", "turn", "metadata"]


def trajectory_row(store: BufferReader, trajectory: str) -> str:
    """Id of the experience that has the reward of a trajectory, which is its last.

    `trajectory`: as a served run or `rft serve` answered it; rows of the latter have it as their group's id.
    Raises: RowError when no trajectory with rows has this id.
    """
    said = canonical_json({TRAJECTORY: trajectory})[1:-1]
    where = Or((Compare("group_id", "eq", trajectory), Contains("metadata", said)))
    rows = [
        row
        for row in store.read("experiences", _COLUMNS, where).to_pylist()
        if trajectory in (row["group_id"], json.loads(row["metadata"] or "{}").get(TRAJECTORY))
    ]
    rollouts = {(row["group_id"], row["member"]) for row in rows}
    if len(rollouts) != 1:
        raise RowError(
            f"{len(rollouts)} stored rollouts are trajectory '{trajectory}'; wanted one. Give the id that "
            "POST /trajectories answered, of a trajectory that has ended; its rows are stored a moment later."
        )
    return str(max(rows, key=lambda row: int(row["turn"]))["experience_id"])
