"""The roles of a run: where they run, what each starts with, and how long a call of one may take.

Roles are named by import path, and imported in the process where they run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RoleDiedError, TrainerDiedError
from rft_data.core.lookup import OWN_CODE, need
from rft_data.core.roles import ElasticPlacement, Placement, Role, RoleSpec
from rft_data.loop.extras import Extras
from rft_data.loop.fleet import Fleet
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.hub.run_files import RunFolders
from rft_data.recipe.running import Deadlines, PlacementSection
from rft_data.run.attached import hub_secret
from rft_data.run.build import PROCESS_ENVIRONMENT
from rft_data.run.hub_file import hub_offered
from rft_data.run.scaling import explorers_asked
from rft_data.run.served_front import AbSettings, ServedFront
from rft_data.run.transports import Sending, Way, make_sender, with_sender
from rft_data.weights.versions import VersionRegistry

log = logging.getLogger(__name__)

_PASSED_ON = ("HF_HUB_OFFLINE", "HF_HOME", "CUDA_VISIBLE_DEVICES", OWN_CODE)


@dataclass
class OfflineCalls:
    """Calls of the offline role: one process on one GPU at most.

    The first call starts it; `close`, the end of the `with` block, or a call that fails ends it.
    """

    placement: Placement
    spec: RoleSpec
    deadline_s: float
    threads: int | None
    """Cores it may use; None: all."""
    _role: Role | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def call(self, method: str, returns: object, **arguments: object) -> Any:
        """Call the role, and wait. Raises: TrainerDiedError when its process ended."""
        self._role = self._role or self.placement.start(self.spec)
        try:
            return self._role.call(method, returns, deadline_s=self.deadline_s, **arguments).result()
        except RoleDiedError as err:
            self.close()
            raise TrainerDiedError(str(err)) from err
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the role, and give its GPU free; a later call starts it again."""
        role, self._role = self._role, None
        if role is not None:
            role.close()


@dataclass(frozen=True)
class Roles:
    """A run's roles before they are started."""

    place: PlacementSection
    """The recipe's placement."""
    run_id: str
    directory: Path
    """The run's folder."""
    buffer: Buffer
    engine: str
    """Name of the engine that explorers sample with; empty where there are none."""
    explorers: Sequence[RoleSpec]
    trainer: RoleSpec
    """CPUs and GPUs of the trainer; its arguments are those of the stage."""
    trainer_threads: int | None
    """Cores the trainer may use; None: all, where roles take turns."""
    deadlines: Deadlines
    feedback_port: int | None = None
    """Port at which the run's hub receives delayed rewards; None: it receives none."""
    way: Way | None = None
    """How weights reach the explorers; None where there are none."""
    folders: RunFolders | None = None
    """Folders that roles on other nodes need copies of."""
    other_hub: HubAccess | None = None
    """The hub of the run that owns the buffer; None: this run does."""
    ab: AbSettings | None = None
    """A share of the users that older weights serve; None: there is none."""

    def open(self, opened: ExitStack) -> Placement:
        """The placement and, where roles run elsewhere, a hub for them; both end with `opened`.

        Raises: RecipeError when the hub receives feedback and no token is set.
        """
        from rft_data.placement import Surroundings, make_placement
        from rft_data.placement.calls import Patience

        environment = {
            **PROCESS_ENVIRONMENT,
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        }
        hub = self._hub(opened)
        patience = Patience()
        if (wait_s := self.place.wait_s) is not None:
            patience = Patience(place_s=wait_s, nodes_s=wait_s)
        surroundings = Surroundings(self.run_id, self.buffer, hub, environment, patience, self.place.address)
        placement = make_placement(self.place.use, surroundings)
        # Ctrl-C for the second time means now
        opened.push(lambda kind, *_: placement.close(now=kind is KeyboardInterrupt))
        return placement

    def start_fleet(
        self,
        placement: Placement,
        versions: VersionRegistry,
        opened: ExitStack,
        *,
        beside: Sequence[RoleSpec] = (),
        whole_rounds: bool,
    ) -> Fleet:
        """Start the explorers, side by side where the placement can, and what sends them weights.

        Args:
            opened: the sender ends with it.
            beside: roles that will be started later and need resources too.
            whole_rounds: see `Fleet`; always so where roles take turns.
        """
        sender = self._sender(opened)
        front = self._front(opened)
        explorers = self.explorers if front is None else front.specs()
        specs = [with_sender(spec, sender) for spec in explorers]
        lasting = specs[: self.place.explorers.least]
        extras = self._extras(placement, specs)
        self.preflight(placement, [*lasting, *beside])
        if front is not None:
            front.start()  # before the engines: they take long, and its port may be taken
        log.info("starting %d explorer(s) on %s", len(lasting), self.engine)
        if placement.overlaps:
            with ThreadPoolExecutor(len(lasting)) as starting:
                started: list[Role] = list(starting.map(placement.start, lasting))
        else:
            started = [placement.start(spec) for spec in lasting]
        return Fleet(
            started,
            versions,
            whole_rounds=whole_rounds or not placement.overlaps,
            deadline_s=self.deadlines.explore_s,
            sender=sender,
            extras=extras,
            arms=None if front is None else front.arms(versions),
        )

    def _front(self, opened: ExitStack) -> ServedFront | None:
        """The server in front of the explorers of an A/B test; None without one."""
        if self.ab is None:
            return None
        return opened.enter_context(ServedFront(self.ab, self.explorers, self.directory))

    def _extras(self, placement: Placement, specs: Sequence[RoleSpec]) -> Extras | None:
        """The explorers that may join and leave; None where their number is fixed.

        Raises: RecipeError if the placement cannot have such.
        """
        count = self.place.explorers
        if count.most == count.least:
            return None
        if not isinstance(placement, ElasticPlacement):
            raise RecipeError(
                f"'placement.explorers.count' is a range, and placement '{self.place.use}' has no methods "
                "'room', 'release' and 'drained' (ElasticPlacement); give a number, or add them."
            )

        def wanted() -> int:
            asked = explorers_asked(self.directory)
            return (count.most if asked is None else asked) - count.least

        return Extras(placement, specs[count.least :], wanted)

    def _sender(self, opened: ExitStack) -> Sending | None:
        if self.way is None:
            return None
        log.info("weights reach the explorers by '%s': %s", self.way.use, self.way.why)
        sender = make_sender(self.way, partial(_own_host, self.place.use))
        if sender is not None:
            opened.callback(sender.close)
        return sender

    def no_fleet(self, versions: VersionRegistry) -> Fleet:
        """A fleet without explorers."""
        return Fleet([], versions, whole_rounds=True, deadline_s=self.deadlines.explore_s)

    def preflight(self, placement: Placement, specs: Sequence[RoleSpec]) -> None:
        """Log warnings about running these roles on this machine or cluster."""
        for warning in placement.preflight(specs):
            log.warning("%s", warning)

    def offline(self, placement: Placement) -> OfflineCalls:
        """Calls of the offline role, with the trainer's CPUs and at most one of its GPUs."""
        spec = replace(
            self.trainer,
            factory="trainers.offline.offline_role:offline_role",
            arguments={},
            gpus=min(self.trainer.gpus, 1.0),
            beside=0,
        )
        return OfflineCalls(placement, spec, self.deadlines.stage_s, self.trainer_threads)

    def _hub(self, opened: ExitStack) -> HubAccess:
        """The hub, with its secret, through which roles elsewhere, and the page, use the buffer."""
        if self.other_hub is not None:
            return self.other_hub
        from rft_data.placement.hub.server import HubServer

        token = None if self.feedback_port is None else hub_secret("rewards")
        server = HubServer(
            self.buffer,
            host=_own_host(self.place.use),
            port=self.feedback_port or 0,
            token=token,
            folders=self.folders,
        )
        opened.callback(server.close)
        server.start()
        opened.enter_context(hub_offered(self.directory, self.buffer.location, server.address, server.token))
        if self.feedback_port is not None:
            log.info("the hub receives feedback at %s", server.address)
        return HubAccess(server.address, server.token)


def trained_from(spec: RoleSpec, model: Path, resume_from: Path | None) -> RoleSpec:
    """A trainer's spec with the model it starts from, and its checkpoint if there is one."""
    resumed = None if resume_from is None else str(resume_from.absolute())
    plan = {**spec.arguments["plan"], "model_path": str(model.absolute()), "resume_from": resumed}
    arguments = {**spec.arguments, "plan": plan}
    return replace(spec, arguments=arguments)


def _own_host(placement: str) -> str:
    """Loopback, or this node's own address where roles may be on others."""
    if placement != "ray":
        return "127.0.0.1"
    return str(need("ray", "ray", "placement 'ray'").util.get_node_ip_address())
