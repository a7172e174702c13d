"""A run that explores with a fixed policy and trains nothing: rows for another time, or another machine."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

from rft_data.core.words import GroupOutcome, HubRole
from rft_data.loop.endpoint_costs import EndpointCosts
from rft_data.loop.explore_only import ExploreLoop
from rft_data.loop.exploring import Exploring
from rft_data.loop.fleet import Fleet
from rft_data.loop.resume import resume_exploring
from rft_data.run.control import RunControl
from rft_data.run.folder import Run
from rft_data.run.parts import ExploreParts
from rft_data.run.report import package_versions, taskset_groups
from rft_data.run.watch.group_log import GroupLog
from rft_data.run.weight_folders import publish_model
from rft_data.sampler import History, make_sampler
from rft_data.sampler.ledger import CONSUMER
from rft_data.weights.served import ServedModel

if TYPE_CHECKING:
    from rft_data.placement.hub.server import HubServer

log = logging.getLogger(__name__)

_LOOK_S = 0.2
"""Pause between two looks whether a trainer is connected."""


def run_explore(parts: ExploreParts, control: RunControl) -> dict[str, object]:
    """Play what is not played yet; returns the summary.

    Raises: what `ExploreLoop.run` raises.
    """
    run = parts.run
    run.buffer.add_tasks(parts.tasks.all)
    with ExitStack() as opened:
        exploring = start_exploring(parts, opened)
        costs = exploring.fleet.costs if isinstance(parts.model, ServedModel) else None
        hub = _serve(parts, opened)
        with GroupLog(run, parts.monitor, exploring, control, parts.groups) as watch:
            ExploreLoop(
                exploring=exploring,
                groups=parts.groups,
                checkpoint_every=parts.checkpoint_every,
                checkpoints=parts.checkpoints,
                sealed=partial(_sealed, run, watch),
                on_progress=partial(_progress, control, costs),
                stop_requested=lambda: control.stop_requested,
            ).run()
        if hub is not None and parts.serve is not None:
            _serve_on(hub, parts.serve.idle_s, control)
        spent = {} if costs is None else {"endpoint": exploring.fleet.all_costs()}
    return {
        "run_id": run.run_id,
        "groups": exploring.sampler.conservation(),
        "groups_by_taskset": taskset_groups(run.buffer, run.run_id),
        "tasks": parts.tasks.report,
        "buffer_rows": run.buffer.counts(),
        "policy_version": run.versions.latest,
        **spent,
        "recipe_hash": run.hash,
        "versions": package_versions(),
    }


def start_exploring(parts: ExploreParts, opened: ExitStack) -> Exploring:
    """Start the explorers with the model; they, and the operators, end with `opened`."""
    run, roles = parts.run, parts.roles
    opened.enter_context(closing(parts.closer.pipeline))
    placement = roles.open(opened)
    fleet = roles.start_fleet(placement, run.versions, opened, whole_rounds=False)
    if not run.versions.published():
        with roles.offline(placement) as offline:
            publish_model(run.versions, offline, parts.model)
    fleet.publish(run.versions.published()[-1])
    fleet.settle()
    return _resumed(parts, fleet)


def _sealed(run: Run, watch: GroupLog) -> None:
    watch.sealed()
    run.keep()


def _progress(control: RunControl, costs: EndpointCosts | None, done: int, total: int) -> None:
    text = f"{done} of {total} groups"
    control.progress(text if costs is None else f"{text}, {costs}", done, total)


def _serve(parts: ExploreParts, opened: ExitStack) -> HubServer | None:
    """The hub for trainers elsewhere, which ends with `opened`. Raises: BusyError if its port is taken."""
    if parts.serve is None:
        return None
    from rft_data.placement.hub.server import HubServer

    place = parts.serve
    hub = HubServer(parts.run.buffer, host=place.host, port=place.port, token=place.secret)
    opened.callback(hub.close)
    log.info("runs of mode train reach this run at %s", hub.start().address)
    return hub


def _serve_on(hub: HubServer, idle_s: float, control: RunControl) -> None:
    """Serve until there was no trainer for `idle_s`, or a stop is requested."""
    control.phase("serving trainers")
    seen = time.monotonic()
    while not control.stop_requested and time.monotonic() - seen <= idle_s:
        if hub.connections(HubRole.TRAINER):
            seen = time.monotonic()
        time.sleep(_LOOK_S)


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
