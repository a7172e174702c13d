"""Rank 0 of a trainer of two processes, run by test_ranks: `python rank_scenarios.py FOLDER`.

FOLDER/scenarios.json lists what is trained; weights and reports are written beside it. Not a test itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from rft_data.errors import RftError
from rft_data.protocols import LeasedBatch
from rft_data.rows import Lease
from trainers.grpo import GrpoTrainer
from trainers.launch import OtherRanks, RankProcesses
from trainers.role import make_trainer


def batches(folder: Path, scenario: dict[str, Any]) -> list[LeasedBatch]:
    """The leases of a scenario, in order of steps."""
    found = []
    for step, name in enumerate(scenario["tables"], scenario.get("first_step", 0)):
        table = pa.ipc.open_file(folder / f"{name}.arrow").read_all()
        seqs = tuple(range(table.num_rows))
        found.append(LeasedBatch(Lease("trainer", step, 0, step, seqs, ("group-a",), "digest"), table))
    return found


def run(trainer: GrpoTrainer, folder: Path, scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """Train it and write its weights."""
    reports = []
    for batch in batches(folder, scenario):
        report = trainer.train_on(batch, checkpoint=scenario.get("checkpoint", False))
        reports.append({"metrics": dict(report.metrics), "ess": {str(v): e for v, e in report.ess.items()}})
    out = folder / scenario["name"]
    out.mkdir()
    trainer.save_weights(out)
    return reports


def made(others: OtherRanks, scenario: dict[str, Any]) -> GrpoTrainer:
    """The scenario's trainer, on every rank."""
    with others.ranks.together({"do": "make", "arguments": scenario["arguments"]}):
        return make_trainer(scenario["arguments"], others.ranks)


def attempt(trainer: GrpoTrainer, batch: LeasedBatch) -> str:
    """What a step raised."""
    try:
        trainer.train_on(batch)
    except RftError as err:
        return f"{type(err).__name__}: {err}"
    return "nothing"


def stalled_step(others: RankProcesses, trainer: GrpoTrainer, batch: LeasedBatch) -> str:
    """What a step raises while the other rank is stopped."""
    os.kill(others.pids[0], signal.SIGSTOP)
    others.ranks.deadline_s = 2.0
    return attempt(trainer, batch)


def main(folder: Path) -> None:
    """Every scenario, the last of which fails; then a rank that hangs, and one that dies."""
    told: dict[str, Any] = {}
    others = RankProcesses(2, 120.0)
    for scenario in json.loads((folder / "scenarios.json").read_text()):
        trainer = made(others, scenario)
        if scenario["name"] == "nan":
            told["nan"] = attempt(trainer, batches(folder, scenario)[0])
        else:
            told[scenario["name"]] = run(trainer, folder, scenario)
        trainer.close()
    others.close()
    others = RankProcesses(2, 120.0)
    trainer = made(others, scenario)
    told["stalled"] = stalled_step(others, trainer, batches(folder, scenario)[0])
    trainer.close()
    others.close(now=True)
    os.environ["RFT_FAILPOINT"] = "rank.order:2:kill"  # of the next child: its first step
    others = RankProcesses(2, 120.0)
    trainer = made(others, scenario)
    told["killed"] = attempt(trainer, batches(folder, scenario)[0])
    trainer.close()
    others.close()
    told["left"] = [others.pids, os.environ.get("RANK")]
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
