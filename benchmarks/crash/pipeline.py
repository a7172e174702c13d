"""The least operator pipeline that decides anything: groups of one reward are dropped, a row of marked
metadata is quarantined with its group kept, the rest get their reward minus the group's mean.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pyarrow as pa

from rft_data.core.canonical import content_id
from rft_data.core.codec import to_table
from rft_data.core.rows import now
from rft_data.core.schema import ANNOTATIONS


class CentredReward:
    """Implements rft_data.core.protocols.Pipeline."""

    pipeline_hash = content_id("centred reward")

    def run(self, experiences: pa.Table) -> pa.Table:
        """One annotation per row, in input order."""
        rows = experiences.select(["seq", "experience_id", "group_id", "reward", "metadata"]).to_pylist()
        rewards: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            rewards[row["group_id"]].append(row["reward"])
        return to_table([self._judge(row, rewards[row["group_id"]]) for row in rows], ANNOTATIONS)

    def _judge(self, row: dict[str, Any], group: list[float]) -> dict[str, Any]:
        kept = len(set(group)) > 1
        broken = kept and json.loads(row["metadata"])["noise"] < 8
        verdict = "quarantined" if broken else "kept" if kept else "dropped"
        return {
            "seq": row["seq"],
            "experience_id": row["experience_id"],
            "pipeline_hash": self.pipeline_hash,
            "verdict": verdict,
            "dropped_by": "" if verdict == "kept" else "centred_reward",
            "reason": "" if verdict == "kept" else "one reward" if not kept else "marked",
            "advantage": [row["reward"] - sum(group) / len(group)] if verdict == "kept" else None,
            "shaped_reward": None,
            "masked": None,
            "stats": {},
            "created_at": now(),
        }

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}
