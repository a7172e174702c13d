"""A run that measures models, or the checkpoints of runs, on held-out tasks. It trains nothing."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from rft_data.core.words import MetricRole
from rft_data.run.control import RunControl
from rft_data.run.evaluations import measure
from rft_data.run.parts import EvaluateParts, Started
from rft_data.run.report import package_versions
from rft_data.run.watch.metrics_log import MetricsLog
from rft_data.run.watch.trackers import make_trackers
from rft_data.run.weight_folders import publish_model
from rft_data.weights.served import ServedModel


def run_evaluate(parts: EvaluateParts, control: RunControl) -> dict[str, object]:
    """Measure every model that is not measured yet; returns the summary."""
    run, roles = parts.run, parts.roles
    run.buffer.add_tasks(parts.tasks.all)
    with ExitStack() as opened:
        if parts.heldout.shaping is not None:
            opened.callback(parts.heldout.shaping.close)
        placement = roles.open(opened)
        fleet = roles.start_fleet(placement, run.versions, opened, whole_rounds=True)
        offline = opened.enter_context(roles.offline(placement))
        trackers = make_trackers(parts.trackers, run.run_id, run.directory, len(parts.models))
        watch = opened.enter_context(MetricsLog(run.buffer, run.run_id, trackers))
        started = Started(control, placement, fleet, offline)
        for place, model in enumerate(parts.models):
            control.phase(str(model))
            run.once(str(model), partial(_measure, parts, started, watch, place))
        served = isinstance(parts.models[0], ServedModel)
        spent = {"endpoint": fleet.all_costs()} if served else {}
    return {
        "run_id": run.run_id,
        "heldout_accuracy": run.progress.heldout_accuracy,
        "heldout_reward": run.progress.heldout_reward,
        "heldout_parts": run.progress.heldout_parts,
        "by_difficulty": run.progress.by_difficulty,
        "pass_at_k": run.progress.pass_at_k,
        "tasks": parts.tasks.report,
        "buffer_rows": run.buffer.counts(),
        **spent,
        "recipe_hash": run.hash,
        "versions": package_versions(),
    }


def _measure(parts: EvaluateParts, started: Started, watch: MetricsLog, place: int) -> None:
    """Measure the model at a place of the list; its place is the step of its numbers."""
    run, model = parts.run, parts.models[place]
    version = publish_model(run.versions, started.offline, model)
    started.fleet.publish(version)
    # folders of two runs may have one name
    found = measure(run, started.fleet, parts.heldout, f"{place}-{model.name}", str(model))
    watch.record(place, version.version, {MetricRole.RUN: found.as_metrics()})
