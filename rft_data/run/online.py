"""An online run from its parts to its summary: solutions, offline stages, the loop, evaluations.

Each phase that a stopped run had completed is skipped when the run is continued.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rft_data.core.words import RunMilestone, RunPhase
from rft_data.recipe.offline import AnyOfflineStage, RewardModelStage, SftStage
from rft_data.recipe.tasksets import StoredExperts
from rft_data.run.control import RunControl
from rft_data.run.evaluations import StepEvaluations, measure
from rft_data.run.experts import copied_answers, expert_rows
from rft_data.run.offline_stages import OfflineStages, stage_name
from rft_data.run.online_stage import reinforce
from rft_data.run.parts import OnlineParts, Started
from rft_data.run.report import draw, package_versions, taskset_groups, token_counts
from rft_data.run.weight_folders import publish_folder, trained_model
from rft_data.sampler.ledger import CONSUMER

log = logging.getLogger(__name__)


def run_online(parts: OnlineParts, control: RunControl) -> dict[str, object]:
    """Do every phase that is not done yet; returns the summary."""
    run = parts.run
    _store_tasks(parts)
    with ExitStack() as opened:
        if parts.heldout is not None and parts.heldout.shaping is not None:
            opened.callback(parts.heldout.shaping.close)
        control.phase("starting the explorers")
        started = _start(parts, control, opened)
        run.once(RunMilestone.START, partial(_publish_and_measure, parts, started, parts.model, "start"))
        model = parts.model
        for number, stage in enumerate(parts.offline_stages):
            control.phase(f"stage {number}: {stage.algorithm}")
            model = _offline_stage(parts, started, number, stage, model)
        control.phase(f"stage {len(parts.offline_stages)}: {parts.rl.algorithm}")
        run.once(RunMilestone.RL, partial(_reinforce, parts, started, model))
        control.phase("the final model")
        trained = trained_model(run, started.offline)
    return _summary(parts, trained)


def _store_tasks(parts: OnlineParts) -> None:
    """Store the tasks, and the experts' solutions of them."""
    run, tasks = parts.run, parts.tasks.all
    with run.timed(RunPhase.TASKS):
        run.buffer.add_tasks(tasks)
        for member, section in enumerate(parts.experts):
            if isinstance(section, StoredExperts):
                # once: what the filter finds may change while the run goes on
                run.once(f"experts-{member}", partial(_copy_answers, parts, section))
                continue
            stored = run.buffer.append(expert_rows(section, member, tasks, run.run_id))
            log.info("%d solutions by %s, %d of them new", len(stored.seqs), section.use, stored.stored)


def _copy_answers(parts: OnlineParts, section: StoredExperts) -> None:
    run = parts.run
    rows = copied_answers(section, run.buffer, run.run_id, parts.heldout_share)
    log.info("%d stored answers as solutions", len(run.buffer.append(rows).seqs))


def _start(parts: OnlineParts, control: RunControl, opened: ExitStack) -> Started:
    """Start the explorers; the resources of the trainer are kept free."""
    run, roles = parts.run, parts.roles
    placement = roles.open(opened)
    with run.timed(RunPhase.ENGINE_START):
        fleet = roles.start_fleet(
            placement,
            run.versions,
            opened,
            beside=[roles.trainer],
            whole_rounds=parts.rl.sampler.max_staleness == 0,
        )
    return Started(control, placement, fleet, opened.enter_context(roles.offline(placement)))


def _offline_stage(
    parts: OnlineParts, started: Started, number: int, stage: AnyOfflineStage, model: Path
) -> Path:
    """Train `model` on stored rows; returns the policy that the next stage goes on from."""
    stages = OfflineStages(parts.run, started.control, started.offline, parts.seed, parts.rl.monitor.trackers)
    folder = stages.folder(number, stage)
    of_its_kind = sum(other.algorithm == stage.algorithm for other in parts.offline_stages)
    label = stage.algorithm if of_its_kind == 1 else stage_name(number, stage)
    is_policy = not isinstance(stage, RewardModelStage)

    # imported rows, and those of other runs, may answer held-out tasks; experts' rows never do
    chooses = not isinstance(stage, SftStage) or stage.data is not None
    share = parts.heldout_share if chooses else 0.0

    def act() -> None:
        stages.train(number, stage, model, heldout=share)
        if is_policy:
            _publish_and_measure(parts, started, folder, label)

    if not parts.run.once(stage_name(number, stage), act):
        stages.check(number, stage)
    return folder if is_policy else model


def _reinforce(parts: OnlineParts, started: Started, model: Path) -> None:
    run = parts.run
    started.offline.close()  # the trainer takes its place
    heldout, evaluations = parts.heldout, None
    if heldout is not None:
        evaluations = StepEvaluations(run, started.fleet, heldout, parts.evaluate_every)
    with run.timed(RunPhase.RL):
        done = reinforce(run, parts.rl, started, model, evaluations)
    run.note(groups=done["groups"], rows=done["rows"])
    if heldout is not None and evaluations is not None:
        found = measure(run, started.fleet, heldout, "final", "final")
        evaluations.note(parts.rl.schedule.steps, found)


def _publish_and_measure(parts: OnlineParts, started: Started, model: Path, label: str) -> None:
    started.fleet.publish(publish_folder(parts.run.versions, started.offline, model))
    if parts.heldout is not None:
        measure(parts.run, started.fleet, parts.heldout, label, label)


def _summary(parts: OnlineParts, trained: Path) -> dict[str, object]:
    run, progress = parts.run, parts.run.progress
    summary = {
        "run_id": run.run_id,
        "seed": parts.seed,
        "engine": parts.roles.engine,
        "placement": parts.roles.place.use,
        "weights": None if parts.roles.way is None else parts.roles.way.as_json(),
        "heldout_accuracy": progress.heldout_accuracy,
        "heldout_reward": progress.heldout_reward,
        "heldout_parts": progress.heldout_parts,
        "by_difficulty": progress.by_difficulty,
        "pass_at_k": progress.pass_at_k,
        "evaluations": progress.evaluations,
        "best": progress.best,
        "stages": progress.stages,
        "tasks": parts.tasks.report,
        "groups": progress.groups,
        "groups_by_taskset": taskset_groups(run.buffer, run.run_id),
        "rows": progress.rows,
        "buffer_rows": run.buffer.counts(),
        "seconds": {phase: round(spent, 1) for phase, spent in progress.seconds.items()},
        "model": str(trained),
        "policy_version": run.versions.latest,
        "consumed_steps": run.ledger.consumed(CONSUMER),
        "recipe_hash": run.hash,
        "versions": package_versions(),
    }
    metrics = run.buffer.read("metrics")
    summary["tokens"] = token_counts(metrics, run.run_id)
    summary["pictures"] = draw(metrics, run.run_id, progress.by_difficulty, run.directory)
    return summary
