"""A run that trains on what its buffer holds: imitation, preferences, a reward model. It explores nothing."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rft_data.core.words import RunMilestone
from rft_data.recipe.offline import AnyOfflineStage, RewardModelStage
from rft_data.run.control import RunControl
from rft_data.run.folder import Run
from rft_data.run.offline_stages import OfflineStages, stage_name
from rft_data.run.parts import OfflineParts
from rft_data.run.report import package_versions
from rft_data.run.roles import OfflineCalls
from rft_data.run.weight_folders import publish_folder


def run_offline(parts: OfflineParts, control: RunControl) -> dict[str, object]:
    """Train every stage that is not trained yet; returns the summary.

    Raises: Stopped, between two stages, when the run was asked to stop.
    """
    run, roles, model = parts.run, parts.roles, parts.model
    with ExitStack() as opened:
        placement = roles.open(opened)
        roles.preflight(placement, [roles.trainer])
        offline = opened.enter_context(roles.offline(placement))
        stages = OfflineStages(run, control, offline, parts.seed, parts.trackers)
        if parts.heldout is not None and parts.heldout.measure:
            control.phase("measuring the start model")
            run.once(
                RunMilestone.START, partial(stages.measure, parts.heldout, parts.model, parts.model, "start")
            )
        for number, stage in enumerate(parts.stages):
            control.phase(f"stage {number}: {stage.algorithm}")
            model = _stage(parts, stages, number, stage, model)
        if model != parts.model:
            run.once(RunMilestone.PUBLISH, partial(_publish, run, offline, model))
    return _summary(parts, model)


def _stage(
    parts: OfflineParts, stages: OfflineStages, number: int, stage: AnyOfflineStage, model: Path
) -> Path:
    """Train a stage and measure it; returns the policy that the next stage goes on from."""
    run, heldout = parts.run, parts.heldout
    name, folder = stage_name(number, stage), stages.folder(number, stage)
    share = heldout.fraction if heldout else 0.0
    if not run.once(name, partial(stages.train, number, stage, model, heldout=share)):
        stages.check(number, stage)
    if heldout is not None and heldout.measure:
        measure = partial(stages.measure, heldout, parts.model, folder, name, stage.algorithm)
        run.once(f"{name} measured", measure)
    return model if isinstance(stage, RewardModelStage) else folder


def _publish(run: Run, offline: OfflineCalls, model: Path) -> None:
    publish_folder(run.versions, offline, model)


def _summary(parts: OfflineParts, model: Path) -> dict[str, object]:
    run, progress = parts.run, parts.run.progress
    return {
        "run_id": run.run_id,
        "seed": parts.seed,
        "model": str(model),
        "preferences": progress.preferences,
        "stages": progress.stages,
        "buffer_rows": run.buffer.counts(),
        "seconds": {phase: round(spent, 1) for phase, spent in progress.seconds.items()},
        "policy_version": run.versions.latest,
        "recipe_hash": run.hash,
        "versions": package_versions(),
    }
