"""The hub's call that stores readmitted groups.

It only adds: rejected groups become trainable under a new run id. Before anything is stored it checks that no
row, group or version of a run that explored would change.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.errors import RowError
from rft_data.core.filters import Compare, In
from rft_data.core.stored_rows import GroupRow
from rft_data.core.words import GroupOutcome


class Readmission:
    """Carries out the call for one buffer."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._lock = threading.Lock()

    def readmit(
        self, table: pa.Table, new_run: str, groups: list[dict[str, Any]], versions: list[dict[str, object]]
    ) -> int:
        """Store verdicts of rejected groups, and the groups under run id `new_run`; returns how many are new.

        Args: table: annotations of rows of the groups. versions: those that sampled them, for `new_run`.
        Raises: RowError for a group that is not a rejected one of a run, or that another run id got, and for
            a verdict about another row.
        """
        with self._lock:
            names = [str(row.get("group_id")) for row in groups]
            stored = self._buffer.read("groups", None, In("group_id", tuple(names))).to_pylist()
            self._check_groups(new_run, groups, stored)
            self._check_rows(table, groups)
            self._check_versions(new_run, versions)
            there = {row["group_id"] for row in stored if row["run_id"] == new_run}
            fresh = [row for row, name in zip(groups, names, strict=True) if name not in there]
            self._buffer.annotate(table)
            self._buffer.add_rows("versions", versions)
            self._buffer.add_rows("groups", fresh)
            return len(fresh)

    def _check_groups(
        self, new_run: str, groups: Sequence[Mapping[str, Any]], stored: Sequence[GroupRow]
    ) -> None:
        if (
            not new_run
            or self._buffer.read("experiences", ["seq"], Compare("run_id", "eq", new_run), 1).num_rows
        ):
            raise RowError(f"'{new_run}' is no run id for readmitted groups: a run explored under it.")
        for row in groups:
            name = row.get("group_id")
            mine = [one for one in stored if one["group_id"] == name]
            rejected = [one for one in mine if one["outcome"] == GroupOutcome.ARRIVED and not one["seqs"]]
            elsewhere = [one["run_id"] for one in mine if one["seqs"] and one["run_id"] != new_run]
            if row.get("run_id") != new_run or not rejected or elsewhere:
                why = f"it is kept under '{elsewhere[0]}'" if elsewhere else "no run rejected it"
                raise RowError(f"group '{name}' cannot be readmitted under run id '{new_run}': {why}.")

    def _check_rows(self, table: pa.Table, groups: Sequence[Mapping[str, Any]]) -> None:
        """Raises: RowError unless all rows that are named are rows of the groups."""
        kept = [seq for row in groups for seq in row.get("seqs") or []]
        seqs = {*kept, *table.column("seq").to_pylist()}
        names = In("group_id", tuple(str(row["group_id"]) for row in groups))
        own = self._buffer.read("experiences", ["seq"], names).column("seq")
        strange = seqs - set(own.to_pylist())
        if strange:
            raise RowError(f"row {min(strange)} belongs to none of the groups that are to be readmitted.")
        hashes = pc.unique(table.column("pipeline_hash")).to_pylist()
        if len(hashes) > 1:
            raise RowError(f"the verdicts are of {len(hashes)} pipelines; send those of one.")

    def _check_versions(self, new_run: str, versions: Sequence[Mapping[str, object]]) -> None:
        for row in versions:
            if row.get("run_id") != new_run or row.get("path"):
                raise RowError(f"a version of run '{row.get('run_id')}' is not for run id '{new_run}'.")
