"""What rank 0 of a trainer on Ray Train does in test_launch. Not a test itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.trainers.ranks import rank_scenarios
from trainers.policy.grpo import GrpoTrainer

FOLDER = "RFT_TEST_FOLDER"


def work(trainer: GrpoTrainer) -> None:
    """Train what FOLDER/scenario.json says."""
    folder = Path(os.environ[FOLDER])
    rank_scenarios.run(trainer, folder, json.loads((folder / "scenario.json").read_text()))
