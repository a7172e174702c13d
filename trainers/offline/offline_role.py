"""Offline work as a role: stages that train on stored rows, the accuracy of models on pairs, whole weights.

It reads only the buffer and model folders, and needs no explorer.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rft_data.core.files import write_manifest
from rft_data.core.model_folder import most_positions
from rft_data.core.reader import BufferReader
from rft_data.placement.hub.node_files import node_files
from trainers.offline.steps_taken import forget_steps


class OfflineRole:
    """Does one piece of work at a time."""

    def __init__(self, buffer: BufferReader) -> None:
        """`buffer`: a buffer, or a client of its hub."""
        self._buffer = buffer
        self._files = node_files(buffer)

    def train(
        self,
        algorithm: str,
        model: str,
        output: str,
        given: dict[str, Any],
        header: Mapping[str, object],
        threads: int | None,
    ) -> dict[str, Any]:
        """Train `model` by a stage of `offline_stage.STAGES`, into the folder `output`, which is emptied
        before.

        Args:
            given: the other fields of `StageInput`.
            header: further entries of the folder's manifest.
            threads: cores that torch uses; None: all.
        Returns: the fields of `StageReport`, and `manifest`, the manifest's digest.
        Raises: what `trainers.offline.offline_stage.run_stage` raises.
        """
        from trainers.offline.offline_stage import StageInput, run_stage

        self._files.fetch(Path(model))
        folder = Path(output)
        shutil.rmtree(folder, ignore_errors=True)  # files that a stopped run left there
        stage = StageInput(Path(model), folder, **given)
        with _cores(threads):
            report = asdict(run_stage(self._buffer, algorithm, stage))
        forget_steps(folder)
        facts = {**header, "examples": report["examples"], "trained_on": report["digest"]}
        digest = write_manifest(folder, facts)
        self._files.send(folder)
        return {**report, "manifest": digest}

    def prefer(
        self,
        algorithm: str,
        model: str,
        base: str,
        data: dict[str, Any],
        heldout: float,
        limit: int,
        threads: int | None,
    ) -> dict[str, float]:
        """How often `model` prefers the better answer of held-out pairs.

        Args:
            algorithm: `reward_model` for a model with a score; any other name is a policy's.
            base: the model before training, to which a policy's implicit rewards are relative.
            data: fields of `stored_pairs.PairChoice`. limit: at most so many pairs, spread evenly.
            threads: cores that torch uses; None: all.
        Returns: figures of `trainers.offline.preference_accuracy`.
        Raises: TrainingError when there is no such pair.
        """
        from trainers.offline.offline_stage import pair_tokens
        from trainers.offline.preference_accuracy import policy_accuracy, scorer_accuracy
        from trainers.offline.stored_pairs import PairChoice, chosen_pairs

        for folder in (model, base):
            self._files.fetch(Path(folder))
        pairs = chosen_pairs(self._buffer, PairChoice(**data), heldout, inside=True).pairs
        pairs = [pairs[i * len(pairs) // limit] for i in range(limit)] if len(pairs) > limit else pairs
        _, tokens, _ = pair_tokens(self._buffer, pairs, Path(base), limit=most_positions(Path(base)))
        with _cores(threads):
            if algorithm == "reward_model":
                return scorer_accuracy(Path(model), tokens)
            return policy_accuracy(Path(model), Path(base), tokens)

    def publishable(self, model: str, directory: str, header: Mapping[str, object]) -> str:
        """Write the model in `model` as a weight directory into an existing empty folder.

        Returns: its manifest's digest.
        """
        from trainers.models.weights import publishable

        self._files.fetch(Path(model))
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        publishable(Path(model), folder)
        digest = write_manifest(folder, header)
        self._files.send(folder)
        return digest

    def close(self) -> None:
        """Nothing is open between calls."""


def _cores(threads: int | None) -> AbstractContextManager[None]:
    from trainers.ranks.threads import every_core, torch_threads

    return every_core() if threads is None else torch_threads(threads)


def offline_role(buffer: BufferReader) -> OfflineRole:
    """The factory that a RoleSpec names."""
    return OfflineRole(buffer)
