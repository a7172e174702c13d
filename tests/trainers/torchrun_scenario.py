"""What torchrun starts for test_launch: each process does as `rft run` does. FOLDER/scenario.json says what.

Not a test itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.trainers import rank_scenarios
from trainers.launch import other_ranks, served_torchrun


def main(folder: Path) -> None:
    """Serve, or be rank 0: train, and write what was trained."""
    if served_torchrun(2, 120.0):
        return
    seen = sorted(name for name in os.environ if name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    others = other_ranks(2, 120.0)
    assert others is not None
    scenario = json.loads((folder / "scenario.json").read_text())
    trainer = rank_scenarios.made(others, scenario)
    rank_scenarios.run(trainer, folder, scenario)
    trainer.close()
    others.close()
    (folder / "told.json").write_text(json.dumps({"seen": seen}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
