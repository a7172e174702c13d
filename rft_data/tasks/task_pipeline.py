"""Operators over tasks, as curation calls them: protocols, which `ops.runtime.pipeline` implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class TaskReport(Protocol):
    """The work of one operator."""

    @property
    def name(self) -> str:
        """Name of the operator."""
        ...

    @property
    def dropped(self) -> Mapping[int, str]:
        """Row number to the reason why it was dropped."""
        ...

    @property
    def quarantined(self) -> Mapping[int, str]:
        """Row number to the error that the operator raised on it."""
        ...


class TaskVerdicts(Protocol):
    """The result of operators over N tasks."""

    @property
    def kept(self) -> npt.NDArray[np.int64]:
        """Indices of the tasks that were kept."""
        ...

    @property
    def table(self) -> pa.Table:
        """The kept tasks, with the columns that operators edited or added."""
        ...

    @property
    def reports(self) -> Sequence[TaskReport]:
        """One per operator."""
        ...


class TaskPipeline(Protocol):
    """Operators over tasks."""

    def run_tasks(self, table: pa.Table) -> TaskVerdicts:
        """Judge every task of a `task_table`."""
        ...

    def close(self) -> None:
        """End the operators' workers, if any; idempotent."""
        ...
