"""Offline work as a role: supervised fine-tuning on stored rows, and weights that were never trained online.

It trains on what the buffer holds and asks no explorer for anything.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from rft_data.filters import And, Compare
from rft_data.manifest import write_manifest

log = logging.getLogger(__name__)


class OfflineRole:
    """One stage at a time."""

    def __init__(self, buffer: Any) -> None:
        """`buffer`: has `read(table, columns, where)`."""
        self._buffer = buffer

    def sft(self, model: str, output: str, options: dict[str, Any], seed: int, run_id: str) -> int:
        """Fine-tune `model` on the run's expert rows into the folder `output`.

        Returns: how many rows there were.
        Raises: what `trainers.sft.train_sft` raises.
        """
        from trainers.sft import train_sft

        mine = And((Compare("source", "eq", "expert"), Compare("run_id", "eq", run_id)))
        rows = self._buffer.read("experiences", where=mine)
        log.info("SFT on %d stored experiences", rows.num_rows)
        train_sft(Path(model), rows, Path(output), options=options, seed=seed)
        return int(rows.num_rows)

    def publishable(self, model: str, directory: str, header: dict[str, Any]) -> str:
        """Write the model in `model` as a weight directory into an existing empty folder.

        Returns: its manifest's digest.
        """
        from trainers.weights import publishable

        publishable(Path(model), Path(directory))
        return write_manifest(Path(directory), header)

    def close(self) -> None:
        """Nothing is held."""


def offline_role(buffer: Any) -> OfflineRole:
    """Factory."""
    return OfflineRole(buffer)
