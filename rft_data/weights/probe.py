"""The probe of a weight directory: fixed token ids and the trainer's logprobs for them.

An engine that loads the weights recomputes the logprobs, which proves the version that it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from rft_data.core.errors import IntegrityError, ParityError

PROBE_FILE = "probe/probe.safetensors"
"""In its own folder, because loaders read every `*.safetensors` beside the model as a part of it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """N sequences and, for each token but the first, its logprob given the ones before it."""

    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[npt.NDArray[np.float32], ...]
    """One array per sequence, of its length; entry 0 is 0.0. Nats, temperature 1."""

    def save(self, directory: Path) -> None:
        """Write the probe below `directory`."""
        (directory / PROBE_FILE).parent.mkdir(exist_ok=True)
        lengths = np.array([len(ids) for ids in self.token_ids], dtype=np.int32)
        flat_ids = np.array([i for ids in self.token_ids for i in ids], dtype=np.int32)
        flat_logprobs = np.concatenate(self.logprobs).astype(np.float32)
        save_file(
            {"lengths": lengths, "token_ids": flat_ids, "logprobs": flat_logprobs}, directory / PROBE_FILE
        )

    @classmethod
    def load(cls, directory: Path) -> Probe:
        """Read the probe below `directory`.

        Raises: IntegrityError if it is missing.
        """
        path = directory / PROBE_FILE
        if not path.is_file():
            raise IntegrityError(
                f"weight directory {directory} has no {PROBE_FILE}; only directories a trainer of ours "
                "published can be served: publish again."
            )
        data = load_file(path)
        ends = np.cumsum(data["lengths"])
        ids = np.split(data["token_ids"], ends[:-1])
        logprobs = np.split(data["logprobs"], ends[:-1])
        return cls(tuple(tuple(int(i) for i in row) for row in ids), tuple(logprobs))

    def check(self, measured: Sequence[npt.NDArray[np.float32]], tolerance: float, what: str) -> float:
        """Return the largest absolute difference of logprobs (nats).

        Raises: ParityError when it is above `tolerance` or not a number.
        """
        worst = max(
            float(np.max(np.abs(got[1:] - want[1:])))
            for got, want in zip(measured, self.logprobs, strict=True)
        )
        if not worst <= tolerance:
            raise ParityError(
                f"{what}: logprobs on the probe differ from the trainer's by {worst:.3g} nats "
                f"(wanted at most {tolerance:.3g}); the engine does not hold the published weights."
            )
        return worst
