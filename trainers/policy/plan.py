"""The plan of a policy-gradient trainer. It is data only: no model is loaded here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainers.policy.objective import ObjectiveSettings


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one step."""

    deadline_s: float = 3600.0
    """Longest wait for a step or a checkpoint."""
    threads: int | None = None
    """CPU threads of torch; None: one for each core of the process. The order of sums, and so the last
    bits of the weights, depends on it."""
    processes: int = 1
    """Data-parallel processes of the trainer."""
    shard: str | None = None
    """`fsdp2`: each process keeps a part of the model; None: the whole."""
    actors: Mapping[str, object] | None = None
    """`namespace`, `cpus` and `gpus` of the Ray actors that the other processes are; None: they are children
    of the first process."""


@dataclass(frozen=True, slots=True)
class GrpoPlan:
    """The training of one stage: from which model, for how many steps, on how many rows, with what loss."""

    model_path: Path
    """Folder of the policy before training, which is also the KL reference."""
    output_dir: Path
    """Folder for checkpoints."""
    steps: int
    """Optimizer steps of the whole run (the length of the learning-rate schedule)."""
    rows_per_step: int
    """Rows of a full batch; shorter leases are padded."""
    options: Mapping[str, object]
    """The recipe's `trl: {...}`, fields of TRL's GRPOConfig."""
    seed: int
    """Seed of the run."""
    resume_from: Path | None = None
    """A checkpoint folder to continue from, exactly."""
    off_policy: Mapping[str, object] = field(default_factory=dict)
    """The recipe's `off_policy: {...}`, fields of OffPolicy."""
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    """The stage's loss settings."""
    limits: Limits = Limits()
    """Limits of one step."""

    @classmethod
    def from_json(cls, arguments: Mapping[str, Any]) -> GrpoPlan:
        """The plan of JSON values: paths are text, and `limits` is a mapping of the fields of `Limits`."""
        resume_from = arguments["resume_from"]
        converted = {
            "model_path": Path(arguments["model_path"]),
            "output_dir": Path(arguments["output_dir"]),
            "resume_from": None if resume_from is None else Path(resume_from),
            "limits": Limits(**arguments["limits"]),
        }
        return cls(**{**arguments, **converted})
