"""A run that explores with a fixed policy and trains nothing: rows for another time, or another machine."""

from __future__ import annotations

from contextlib import ExitStack, closing

from rft_data.core.words import GroupOutcome
from rft_data.loop.explore_only import ExploreLoop
from rft_data.loop.exploring import Exploring
from rft_data.loop.fleet import Fleet
from rft_data.loop.resume import resume_exploring
from rft_data.run.control import RunControl
from rft_data.run.parts import ExploreParts
from rft_data.run.report import package_versions
from rft_data.run.weight_folders import publish_folder
from rft_data.sampler import History, make_sampler
from rft_data.sampler.ledger import CONSUMER


def run_explore(parts: ExploreParts, control: RunControl) -> dict[str, object]:
    """Play what is not played yet; returns the summary.

    Raises: what `ExploreLoop.run` raises.
    """
    run, roles = parts.run, parts.roles
    run.buffer.add_tasks(parts.tasks.all)
    with ExitStack() as opened:
        opened.enter_context(closing(parts.closer.pipeline))
        placement = roles.open(opened)
        fleet = roles.start_fleet(placement, run.versions, whole_rounds=False)
        if not run.versions.published():
            with roles.offline(placement) as offline:
                publish_folder(run.versions, offline, parts.model)
        fleet.publish(run.versions.published()[-1])
        fleet.settle()
        exploring = _resumed(parts, fleet)
        ExploreLoop(
            exploring=exploring,
            groups=parts.groups,
            checkpoint_every=parts.checkpoint_every,
            checkpoints=parts.checkpoints,
            on_progress=control.progress,
            stop_requested=lambda: control.stop_requested,
        ).run()
    return {
        "run_id": run.run_id,
        "groups": exploring.sampler.conservation(),
        "tasks": parts.tasks.report,
        "buffer_rows": run.buffer.counts(),
        "policy_version": run.versions.latest,
        "recipe_hash": run.hash,
        "versions": package_versions(),
    }


def _resumed(parts: ExploreParts, fleet: Fleet) -> Exploring:
    """The exploring parts, where the run stopped."""
    run = parts.run
    at = resume_exploring(parts.closer, parts.dispatcher, checkpoints=parts.checkpoints)
    sampler = make_sampler(
        "fifo",
        {},
        ledger=run.ledger,
        versions=run.versions,
        consumer=CONSUMER,
        groups_per_step=1,
        max_staleness=None,
        history=History(at.history),
    )
    return Exploring(
        closer=parts.closer,
        sampler=sampler,
        dispatcher=parts.dispatcher,
        fleet=fleet,
        closed=sum(result.outcome != GroupOutcome.CANCELLED for result in at.history),
    )
