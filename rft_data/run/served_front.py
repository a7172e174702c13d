"""The front of an A/B test: started in a thread of the run, before explorers that listen at Unix sockets."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from explorers.capture.listening import LOOPBACK, listening
from explorers.workflows.front import Front
from rft_data.core.arms import Arm
from rft_data.core.errors import RecipeError
from rft_data.core.roles import RoleSpec
from rft_data.loop.arms import Arms
from rft_data.placement.background import Background
from rft_data.recipe.online import OnlineRecipe
from rft_data.weights.versions import VersionRegistry

log = logging.getLogger(__name__)

_WORKFLOW = "explorers.workflows.served_arm:ServedArm"
FRONT_FILE = "front.txt"
"""File in the folder of a run: where its explorers listen."""
_FOLDER = "rft-ab-"
_MOST_PATH = 107
"""Bytes of a Unix socket's path on Linux, at most."""
_MOST_PORT = 65535


@dataclass(frozen=True)
class AbSettings:
    """The settings of an A/B test in a recipe."""

    share: float
    """Share of the trajectories that older weights serve."""
    steps_behind: int
    """Optimizer steps between these weights and the newest."""
    seed: int
    """Seed of the draw of arms."""


def ab_settings(recipe: OnlineRecipe) -> AbSettings | None:
    """None for a recipe without an A/B test."""
    if recipe.ab is None:
        return None
    return AbSettings(recipe.ab.share, recipe.ab.steps_behind(recipe.sync), recipe.seed)


@dataclass
class ServedFront:
    """The addresses of a run's explorers, and the front before them."""

    settings: AbSettings
    explorers: Sequence[RoleSpec]
    """Specs of the explorers, as the recipe says; the last one is pinned."""
    run_dir: Path
    """Folder of the run, whose path may be too long for sockets: it says where they are."""
    _folder: Path = field(init=False)

    def __enter__(self) -> ServedFront:
        self._opened = ExitStack()
        self._sweep()
        self._opened.callback(self._sweep)
        self._folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        (self.run_dir / FRONT_FILE).write_text(str(self._folder))
        longest = max((str(self._socket(spec)) for spec in self.explorers), key=len)
        if len(os.fsencode(longest)) > _MOST_PATH:
            self._opened.close()
            raise RecipeError(
                f"the explorers of an A/B test listen at Unix sockets such as {longest}, and a socket's path "
                f"has {_MOST_PATH} bytes at most; set TMPDIR to a shorter folder, such as /tmp."
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _sweep(self) -> None:
        """Remove the sockets of this run, also those of a process of it that was killed."""
        said = self.run_dir / FRONT_FILE
        if said.is_file():
            folder = Path(said.read_text())
            if folder.name.startswith(_FOLDER):
                shutil.rmtree(folder, ignore_errors=True)
            said.unlink()

    def specs(self) -> list[RoleSpec]:
        """The explorers, each of which listens at its own socket and knows its arm."""
        return [self._behind_front(spec) for spec in self.explorers]

    def arms(self, versions: VersionRegistry) -> Arms:
        """For the fleet of these explorers."""
        settings = self.settings
        return Arms(self.explorers[-1].name, settings.share, settings.steps_behind, versions)

    def start(self) -> None:
        """Listen at the address that the recipe gives its workflow.

        Raises: BusyError for a taken port; RecipeError for what is no address or no token.
        """
        sockets: dict[Arm, list[str]] = {arm: [] for arm in Arm}
        for spec in self.explorers:
            sockets[self._arm(spec)].append(str(self._socket(spec)))
        host, port = self._place()
        token = self._args().get("token")
        front = Front(sockets, token=token, seed=self.settings.seed, share=self.settings.share)
        loop = Background("served-front")
        self._opened.callback(loop.close)
        serving = AsyncExitStack()
        serving.push_async_callback(front.close)
        self._opened.callback(lambda: loop.run(serving.aclose()))
        address = loop.run(serving.enter_async_context(listening(front, host=host, port=port)))
        log.info("programs reach the policy at %s/trajectories, in two arms", address)

    def _args(self) -> Mapping[str, Any]:
        """The arguments that the recipe gives the workflow."""
        return self.explorers[0].arguments["plan"]["workflow"].get("args") or {}

    def _place(self) -> tuple[str, int]:
        given = self._args()
        host, port = given.get("host", LOOPBACK), given.get("port", 0)
        if not isinstance(host, str):
            raise RecipeError(f"explorer.workflow.args.host is {host!r}; wanted a name or an address.")
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _MOST_PORT:
            raise RecipeError(
                f"explorer.workflow.args.port is {port!r}; wanted a whole number from 0 to {_MOST_PORT}."
            )
        return host, port

    def _behind_front(self, spec: RoleSpec) -> RoleSpec:
        plan: Mapping[str, Any] = spec.arguments["plan"]
        given = plan["workflow"].get("args") or {}
        args = {**given, "arm": str(self._arm(spec)), "socket": str(self._socket(spec))}
        workflow = {**plan["workflow"], "use": _WORKFLOW, "args": args}
        return replace(spec, arguments={**spec.arguments, "plan": {**plan, "workflow": workflow}})

    def _arm(self, spec: RoleSpec) -> Arm:
        return Arm.OLD if spec.name == self.explorers[-1].name else Arm.NEW

    def _socket(self, spec: RoleSpec) -> Path:
        return self._folder / spec.name
