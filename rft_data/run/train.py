"""A run that trains on groups which another run explored: another process, another time."""

from __future__ import annotations

from contextlib import ExitStack

from rft_data.run.control import RunControl
from rft_data.run.online_stage import reinforce
from rft_data.run.parts import Started, TrainParts
from rft_data.run.report import package_versions
from rft_data.run.weight_folders import trained_model
from rft_data.sampler.ledger import CONSUMER


def run_train(parts: TrainParts, control: RunControl) -> dict[str, object]:
    """Train to the last step; returns the summary."""
    run, roles = parts.run, parts.roles
    with ExitStack() as opened:
        placement = roles.open(opened)
        roles.preflight(placement, [roles.trainer])
        offline = opened.enter_context(roles.offline(placement))
        started = Started(control, placement, roles.no_fleet(run.versions), offline)
        done = reinforce(run, parts.rl, started, parts.model)
        trained = trained_model(run, started.offline)
    return {
        "run_id": run.run_id,
        **done,
        "model": str(trained),
        "policy_version": run.versions.latest,
        "consumed_steps": run.ledger.consumed(CONSUMER),
        "recipe_hash": run.hash,
        "versions": package_versions(),
    }
