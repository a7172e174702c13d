"""A run that measures models, or the checkpoints of runs, on held-out tasks. It trains nothing."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from rft_data.run.control import RunControl
from rft_data.run.endpoint_costs import EndpointCosts
from rft_data.run.evaluations import measure
from rft_data.run.parts import AnyModel, EvaluateParts, Started
from rft_data.run.report import package_versions
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
        started = Started(control, placement, fleet, offline)
        for place, model in enumerate(parts.models):
            control.phase(str(model))
            run.once(str(model), partial(_measure, parts, started, model, f"{place}-{model.name}"))
        served = isinstance(parts.models[0], ServedModel)
        spent = {"endpoint": EndpointCosts(fleet).summary()} if served else {}
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


def _measure(parts: EvaluateParts, started: Started, model: AnyModel, label: str) -> None:
    """Args: label: names the model's rows; folders of two runs may have one name."""
    started.fleet.publish(publish_model(parts.run.versions, started.offline, model))
    measure(parts.run, started.fleet, parts.heldout, label, str(model))
