"""Evaluations of a run: models are measured on held-out tasks, and the best weights of the online stage kept.

What is measured before and after stages is noted in the run's progress under the model's name; what is
measured during the online stage under its step, and in the step's metrics.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rft_data.core.codec import to_experiences
from rft_data.core.effective_reward import ShapedRewards
from rft_data.core.files import fsync
from rft_data.core.words import RunPhase
from rft_data.loop.evaluation import evaluate
from rft_data.loop.fleet import Fleet
from rft_data.run.accuracy import Figures, figures
from rft_data.run.folder import Run
from rft_data.run.parts import Heldout

log = logging.getLogger(__name__)

BEST = "best"
"""The folder in the run's folder that holds the best weights, in a folder named after their step."""


def measure(run: Run, fleet: Fleet, heldout: Heldout, label: str, key: str) -> Figures:
    """Play held-out tasks on the weights published last, and note the figures in the run's progress.

    Args: label: names the rows. key: names the figures.
    """
    found = _play(run, fleet, heldout, label, key)
    progress = run.progress
    if found.pass_at_k:
        run.note(pass_at_k={**progress.pass_at_k, key: found.pass_at_k})
    run.note(
        heldout_accuracy={**progress.heldout_accuracy, key: found.pass_rate},
        by_difficulty={**progress.by_difficulty, key: found.by_class},
        heldout_reward={**progress.heldout_reward, key: _reward(found)},
        heldout_parts={**progress.heldout_parts, key: found.mean_parts},
    )
    return found


@dataclass(frozen=True)
class StepEvaluations:
    """Evaluations every few optimizer steps of the online stage."""

    run: Run
    fleet: Fleet
    heldout: Heldout
    every: int | None
    """Optimizer steps between two; None: there are none, and no best weights are kept."""

    def due(self, step: int) -> bool:
        """Whether the weights of `step` are measured during the stage."""
        return self.every is not None and step > 0 and step % self.every == 0

    def measure(self, step: int) -> dict[str, float]:
        """Measure the published weights of `step`; keep them if they are the best so far.

        Returns: the figures, as metrics.
        """
        found = _play(self.run, self.fleet, self.heldout, f"step{step}", f"step {step}")
        self.note(step, found)
        return found.as_metrics()

    def note(self, step: int, found: Figures) -> None:
        """Note the figures of the weights published last, and keep them if they are the best so far."""
        if self.every is None:
            return
        run = self.run
        run.note(evaluations={**run.progress.evaluations, str(step): found.as_json()})
        if not run.progress.best or _rank(found.as_json()) > _rank(run.progress.best):
            self._keep(step, found)
        run.save()

    def _keep(self, step: int, found: Figures) -> None:
        folder = self.run.directory / BEST / f"step-{step}"
        _link_tree(Path(self.run.versions.published()[-1].path), folder)
        self.run.note(best={"step": step, "model": str(folder), **found.as_json()})
        self.run.save()
        for other in folder.parent.iterdir():
            if other != folder:
                shutil.rmtree(other)


def _play(run: Run, fleet: Fleet, heldout: Heldout, label: str, key: str) -> Figures:
    """Play the held-out tasks, let operators shape the rewards, and count."""
    with run.timed(RunPhase.EVALUATION):
        name = f"{run.run_id}/eval-{label}-{run.attempt}"
        rows = run.buffer.take(evaluate(fleet, run.buffer, heldout.tasks, name, heldout.samples))
        if heldout.shaping is not None and rows.num_rows:
            run.buffer.annotate(heldout.shaping.run(rows))
            rows = ShapedRewards(run.buffer).counted(rows)
        found = figures(to_experiences(rows), heldout)
    shown = "none" if found.mean_reward is None else f"{found.mean_reward:.3f}"
    error = "" if found.standard_error is None else f" (standard error {found.standard_error:.3f})"
    log.info(
        "held-out, %s: %.1f %% of %d rollouts pass, mean reward %s%s",
        key,
        100 * found.pass_rate,
        found.rollouts,
        shown,
        error,
    )
    return found


def _reward(found: Figures) -> dict[str, float | None]:
    return {"reward": found.mean_reward, "reward_error": found.standard_error}


def _rank(figures: Mapping[str, object]) -> tuple[float, float]:
    """Pass rate, then mean reward; without one it comes last."""
    rate, reward = figures["pass_rate"], figures["mean_reward"]
    assert isinstance(rate, float)  # noqa: S101 - as `Figures.as_json` wrote it
    return rate, reward if isinstance(reward, float) else float("-inf")


def _link_tree(source: Path, target: Path) -> None:
    """Make `target` a copy of a finished folder by hard links: its files never change, and cost no room."""
    draft = target.with_name(f".draft-{target.name}")
    for leftover in (draft, target):  # of a start that was killed before it noted this
        shutil.rmtree(leftover, ignore_errors=True)
    target.parent.mkdir(exist_ok=True)
    shutil.copytree(source, draft, copy_function=os.link)
    for folder in (draft, *draft.rglob("*/")):
        fsync(folder)
    draft.rename(target)
    fsync(target.parent)
