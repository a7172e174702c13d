"""A run's numbers as a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.errors import UnknownComponentError
from rft_data.core.filters import And, Compare, Filter, In
from rft_data.core.lookup import suggest

if TYPE_CHECKING:
    import pandas as pd


def run_metrics(buffer: Buffer, run_id: str, names: Sequence[str] | None = None) -> pd.DataFrame:
    """One row per optimizer step, one column per `role/key`; NaN where a step lacks a number.

    `loop/policy_version` and `loop/elapsed_s` are the other axes. Of a step taken again after a resume the
    newest numbers count.
    Args: names: read only these, of which those that the run has are columns; None: all.
    Raises: UnknownComponentError if the buffer holds no metrics of that run.
    """
    import pandas as pd  # 0.5 s: not paid by those who want no frame

    where: Filter = Compare("run_id", "eq", run_id)
    if names is not None:
        roles, keys = zip(*(name.split("/", 1) for name in names), strict=True)
        where = And((where, In("role", roles), In("key", keys)))
    found = buffer.read("metrics", ["step", "role", "key", "value"], where)
    if not found.num_rows:
        runs = sorted(pc.unique(buffer.read("metrics", ["run_id"])["run_id"]).to_pylist())
        raise UnknownComponentError(
            f"{buffer.location} holds no metrics of run '{run_id}';{suggest(run_id, runs)} "
            f"Runs with metrics: {', '.join(runs) or 'none'}."
        )
    joined = pc.binary_join_element_wise(found["role"], found["key"], "/")
    long = pd.DataFrame({"step": found["step"], "name": joined, "value": found["value"]})
    newest = long.drop_duplicates(["step", "name"], keep="last")
    table = newest.pivot(index="step", columns="name", values="value")
    return table if names is None else table[[name for name in names if name in table.columns]]
