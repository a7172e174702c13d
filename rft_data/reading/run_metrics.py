"""A run's numbers as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.errors import UnknownComponentError
from rft_data.core.filters import Compare
from rft_data.core.lookup import suggest

if TYPE_CHECKING:
    import pandas as pd


def run_metrics(buffer: Buffer, run_id: str) -> pd.DataFrame:
    """One row per optimizer step, one column per `role/key`; NaN where a step lacks a number.

    `loop/policy_version` and `loop/elapsed_s` are the other axes. Of a step taken again after a resume the
    newest numbers count.
    Raises: UnknownComponentError if the buffer holds no metrics of that run.
    """
    import pandas as pd  # 0.5 s: not paid by those who want no frame

    found = buffer.read("metrics", ["step", "role", "key", "value"], Compare("run_id", "eq", run_id))
    if not found.num_rows:
        runs = sorted(pc.unique(buffer.read("metrics", ["run_id"])["run_id"]).to_pylist())
        raise UnknownComponentError(
            f"{buffer.location} holds no metrics of run '{run_id}';{suggest(run_id, runs)} "
            f"Runs with metrics: {', '.join(runs) or 'none'}."
        )
    names = pc.binary_join_element_wise(found["role"], found["key"], "/")
    long = pd.DataFrame({"step": found["step"], "name": names, "value": found["value"]})
    newest = long.drop_duplicates(["step", "name"], keep="last")
    return newest.pivot(index="step", columns="name", values="value")
