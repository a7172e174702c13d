"""The start of a trainer: the model of its plan, or of a checkpoint, and the steps that it has taken."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import PreTrainedModel

from rft_data.core.errors import ResumeError
from trainers.models.weights import load_policy
from trainers.policy.plan import GrpoPlan


def load_start(plan: GrpoPlan) -> PreTrainedModel:
    """The model to train: of the checkpoint, if there is one; with an adapter always the base."""
    has_adapter = plan.objective.get("lora") is not None
    source = plan.model_path if plan.resume_from is None or has_adapter else plan.resume_from
    return load_policy(source, plan.model_path, plan.objective.get("reference"), plan.options)


def checkpoint_step(checkpoint: Path) -> int:
    """Optimizer steps that were done when a checkpoint was written.

    Raises: ResumeError when the folder is not a complete checkpoint.
    """
    state = checkpoint / "trainer_state.json"
    if not state.is_file():
        raise ResumeError(
            f"'{checkpoint}' is not a trainer checkpoint: it has no {state.name}; resume from another."
        )
    return int(json.loads(state.read_text())["global_step"])
