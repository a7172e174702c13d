"""A run conducted by a Ray actor, which Ray starts again when it dies.

The actor ends with the process that started it (under `ray job submit` that process is on the cluster). It
runs on that process's node and no other: the run's folder is there.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

from pydantic_core import from_json, to_json

from rft_data.core.errors import BusyError, RftError, RoleDiedError
from rft_data.core.logs import log_to_stderr
from rft_data.core.lookup import need, own_code_from, own_folders
from rft_data.core.masking import hidden_values, hide, mask_streams
from rft_data.placement.hub.wire import decode_answer, encode_error, encode_result
from rft_data.placement.ray import connect
from rft_data.placement.ray_handles import on_this_node
from rft_data.placement.ray_resources import give_back_places
from rft_data.recipe.modes import MODES
from rft_data.recipe.recipe import RunRecipe
from rft_data.run.record import RECORD_FILE, ask_to_stop

log = logging.getLogger(__name__)

NAMESPACE = "rft"
_RESTARTS = 3


class Conductor:
    """The actor's body."""

    def run(self, recipe: bytes, folder: str, path: list[str], home: str, take_over: bool = False) -> bytes:
        """Run or resume; answers the summary or the error as JSON.

        Args:
            folder: the working directory that the recipe's paths start from.
            path: where code is found.
            home: the id of the node that `folder` is on.
            take_over: as `run_recipe` takes it, for the first of its starts.
        """
        context = need("ray", "ray", "a conductor").get_runtime_context()
        if error := _elsewhere(home, context.get_node_id(), folder):
            return encode_error(error)
        os.chdir(folder)
        sys.path[:] = list(dict.fromkeys([*path, *sys.path]))
        mask_streams()
        log_to_stderr()
        from rft_data.run.start import run_recipe

        loaded = _received(recipe)
        again = context.was_current_actor_reconstructed
        if again:
            give_back_places(loaded.run_id)
        try:
            return encode_result(run_recipe(loaded, take_over=take_over and not again))
        except RftError as err:
            return encode_error(err)


def conduct(recipe: RunRecipe, *, take_over: bool = False) -> dict[str, object]:
    """Run a recipe of placement `ray` to its end; returns its summary.

    Ctrl-C once asks the run to drain and checkpoint, twice ends it at once. A cluster is started only if
    there is none (RAY_ADDRESS names one), and only such a one is ended.

    Raises: BusyError if the run is conducted on this cluster already; what the run raises; RoleDiedError
        if its conductor died more often than it may.
    """
    ray = need("ray", "ray", "placement 'ray'")
    mine = connect(recipe.placement.address)
    try:
        return _conducted(ray, recipe, take_over)
    finally:
        if mine:
            ray.shutdown()


def _conducted(ray: ModuleType, recipe: RunRecipe, take_over: bool) -> dict[str, object]:
    name = f"rft-{recipe.name}"
    home = ray.get_runtime_context().get_node_id()
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": _RESTARTS}
    options["scheduling_strategy"] = on_this_node("placement 'ray'")
    try:
        actor = ray.remote(Conductor).options(**options, max_task_retries=_RESTARTS).remote()
    except ValueError as err:
        raise BusyError(
            f"run '{recipe.name}' is conducted on this Ray cluster already (actor '{name}'); wait for it, or "
            f"end it with: rft stop {recipe.run_dir}"
        ) from err
    answer = actor.run.remote(_sent(recipe), os.getcwd(), sys.path, home, take_over)
    try:
        try:
            return dict(decode_answer(ray.get(answer)))
        except KeyboardInterrupt:  # the first; a second one ends it at once
            if not (recipe.folder / RECORD_FILE).is_file():
                raise
            log.warning("%s", ask_to_stop(recipe.folder, now=False))
            return dict(decode_answer(ray.get(answer)))
    except ray.exceptions.RayActorError as err:
        raise RoleDiedError(
            f"the conductor of run '{recipe.name}' died {_RESTARTS + 1} times, the last time with: {err}. "
            f"What was acknowledged is stored; resume with: rft resume {recipe.run_dir}"
        ) from err
    finally:
        ray.kill(actor)


def _elsewhere(home: str, here: str, folder: str) -> RftError | None:
    """The error of a conductor that is not on the node it belongs to."""
    if home == here:
        return None
    return RftError(
        f"the conductor is on Ray node {here}; the run was called in {folder} of node {home}, where its "
        "folder belongs. Nothing was written. Call `rft run` on a node of the cluster, without Ray Client."
    )


def _sent(recipe: RunRecipe) -> bytes:
    """The recipe, its environment references and folders of code, for a process with another environment."""
    references = [[list(loc), reference] for loc, reference in recipe.references.items()]
    parts = {"recipe": recipe.model_dump(mode="json"), "references": references, "hidden": hidden_values()}
    return bytes(to_json({**parts, "own_folders": own_folders()}))


def _received(sent: bytes) -> RunRecipe:
    parts = from_json(sent)
    hide(parts["hidden"])
    for folder in parts["own_folders"]:
        own_code_from(Path(folder))
    recipe = cast("RunRecipe", MODES[parts["recipe"]["mode"]].model_validate(parts["recipe"]))
    recipe.keep_references({tuple(loc): reference for loc, reference in parts["references"]})
    return recipe
