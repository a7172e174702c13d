"""Offline stages of a run, in recipes with and without exploring: one call of the offline role each.

What a stage trained on is in the table `stage_rows` and in its folder (`trained_on.jsonl`), and by digest in
the folder's manifest, the run's progress and its summary.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rft_data.core.canonical import bytes_id
from rft_data.core.errors import IntegrityError
from rft_data.core.files import manifest_bytes, read_manifest
from rft_data.core.words import MetricRole, RowSource, RunPhase
from rft_data.exchange.annotate import store_said
from rft_data.recipe.offline import AnyOfflineStage, HeldoutPairs, SftStage
from rft_data.run.control import RunControl
from rft_data.run.folder import Run
from rft_data.run.roles import OfflineCalls
from rft_data.run.watch.stage_feed import StageFeed
from rft_data.run.watch.trackers import make_trackers
from trainers.offline.steps_taken import ask_to_stop, forget_steps

log = logging.getLogger(__name__)

_CHOICE = ("pairs", "run", "where", "margin")
_ROW_KEYS = ("experience_id", "chosen_experience_id", "rejected_experience_id")


def stage_name(number: int, stage: AnyOfflineStage) -> str:
    """Name of a stage in the run's folder, its progress and its metrics."""
    return f"{number}-{stage.algorithm}"


@dataclass(frozen=True)
class OfflineStages:
    """Trains and measures by calls of the offline role; writes down what they did."""

    run: Run
    control: RunControl
    offline: OfflineCalls
    seed: int
    trackers: Sequence[str]
    """Names of those that are shown a stage's numbers."""

    def folder(self, number: int, stage: AnyOfflineStage) -> Path:
        """The folder of a stage's model."""
        return self.run.directory / "stages" / stage_name(number, stage)

    def train(self, number: int, stage: AnyOfflineStage, model: Path, *, heldout: float = 0.0) -> None:
        """Train `model` by a stage; what it did goes into the run's progress and the `metrics` table.

        Args: heldout: share of prompts that are not trained on.
        Raises: what the offline role raises; Stopped, within the stage, when a stop is asked for.
        """
        run, name, folder = self.run, stage_name(number, stage), self.folder(number, stage)
        # made before the stage is trained, so that a package that is missing is not found hours later
        trackers = make_trackers(self.trackers, run.run_id, run.directory, 0, axis=name)
        store_said(run.buffer)
        given = {
            "options": stage.trl,
            "data": _data(stage, run.run_id),
            "seed": self.seed,
            "heldout": heldout,
            "lora": stage.lora,
        }
        forget_steps(folder)  # of a start that was killed
        with StageFeed(trackers, name, folder) as feed:
            self.control.counting(feed.look)
            self.control.when_asked_to_stop(lambda: ask_to_stop(folder))
            with run.timed(stage.algorithm):
                report: dict[str, Any] = self.offline.call(
                    "train",
                    dict[str, Any],
                    algorithm=stage.algorithm,
                    model=str(model.absolute()),
                    output=str(folder.absolute()),
                    given=given,
                    header={"run_id": run.run_id, "stage": name},
                    threads=self.offline.threads,
                )
            points = _points(name, report)
            feed.end(points)
        forget_steps(folder)
        log.info("%s: trained on %d examples", name, report["examples"])
        run.buffer.add_rows("stage_rows", [_examples(run.run_id, name, folder, report["digest"])])
        _record(run, MetricRole.TRAINER, points)
        run.note(stages={**run.progress.stages, name: {**report, "folder": str(folder)}})

    def check(self, number: int, stage: AnyOfflineStage) -> None:
        """See that the folder of a stage that a former start trained is what it wrote.

        Raises: IntegrityError naming what is missing or differs.
        """
        name, folder = stage_name(number, stage), self.folder(number, stage)
        if bytes_id(manifest_bytes(folder)) != self.run.progress.stages[name]["manifest"]:
            raise IntegrityError(
                f"{folder} is not what stage '{name}' of run '{self.run.run_id}' wrote: its manifest is "
                "another. Put it back, or run again with --fresh."
            )
        read_manifest(folder)

    def measure(
        self, pairs: HeldoutPairs, base: Path, measured: Path, label: str, algorithm: str = ""
    ) -> None:
        """Note how well a model tells better from worse on the held-out pairs.

        Args:
            base: the run's start model.
            label: names the figures.
            algorithm: of the stage that made the model.
        """
        run = self.run
        with run.timed(RunPhase.EVALUATION):
            found: dict[str, float] = self.offline.call(
                "prefer",
                dict[str, Any],
                algorithm=algorithm,
                model=str(measured.absolute()),
                base=str(base.absolute()),
                data=pairs.model_dump(include=set(_CHOICE)),
                heldout=pairs.fraction,
                limit=pairs.limit,
                threads=self.offline.threads,
            )
        done = {**run.progress.preferences, label: found}
        run.note(preferences=done)
        _record(
            run, MetricRole.RUN, {(len(done) - 1, f"heldout/{key}"): value for key, value in found.items()}
        )
        log.info(
            "held-out preference accuracy, %s: %.1f %% of %d pairs, margin %.3f",
            label,
            100 * found["accuracy"],
            found["pairs"],
            found["margin"],
        )


def _data(stage: AnyOfflineStage, run_id: str) -> dict[str, object]:
    """The stage's choice as the offline role takes it."""
    if isinstance(stage, SftStage) and stage.data is None:
        return {"sources": [RowSource.EXPERT], "run": run_id}
    assert stage.data is not None  # noqa: S101 - only sft may leave it out
    return stage.data.model_dump()


def _examples(run_id: str, stage: str, folder: Path, digest: str) -> dict[str, object]:
    """A row of `stage_rows`, of what the stage's folder says it was trained on."""
    from trainers.offline.offline_stage import TRAINED_ON

    names = [json.loads(line) for line in (folder / TRAINED_ON).read_text().splitlines()]
    rows = {name[key] for name in names for key in _ROW_KEYS if name.get(key) is not None}
    pairs = {name["preference_id"] for name in names if "preference_id" in name}
    ids = {"experience_ids": sorted(rows), "preference_ids": sorted(pairs)}
    return {"run_id": run_id, "stage": stage, "digest": digest, **ids}


def _points(stage: str, report: dict[str, Any]) -> dict[tuple[int, str], float]:
    """A stage's numbers by (optimizer step, name); its history is taken out of the report."""
    points = {
        (int(entry["step"]), f"{stage}/{key}"): float(value)
        for entry in report.pop("history")
        for key, value in entry.items()
        if key != "step"
    }
    points[(int(report["metrics"]["steps"]), f"{stage}/examples")] = float(report["examples"])
    return points


def _record(run: Run, role: MetricRole, numbers: Mapping[tuple[int, str], float]) -> None:
    """Store numbers by (optimizer step, name) in one commit."""
    run.buffer.add_rows(
        "metrics",
        [
            {"run_id": run.run_id, "role": role, "step": step, "key": key, "value": float(value)}
            for (step, key), value in numbers.items()
        ],
    )
