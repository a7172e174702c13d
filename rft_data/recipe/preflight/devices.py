"""Parts of a recipe that cannot work on the devices that it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from explorers.engines.parallel import SIZES, Parallel, parallel_sizes, unfit, unfit_shape
from rft_data.core.errors import RecipeError
from rft_data.core.gpus import gpu_number, visible_devices
from rft_data.core.words import Mode
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.tree import Tree, entries, value
from rft_data.recipe.section import Loc

_OPTIONS: Loc = ("explorer", "engine", "options")


def device_problems(tree: Tree) -> Iterator[Problem]:
    """Sizes and GPUs that do not go together."""
    options = value(tree, "explorer", "engine", "options")
    if not isinstance(options, Mapping):
        return
    for place, one in entries(options, "engines"):
        for name in set(SIZES) & set(value(one, "options") or {}):  # type: ignore[call-overload]
            yield Problem(
                (*_OPTIONS, *place, "options", name),
                "each engine of 'routed' is on one device; use the engine vllm, whose data_parallel_size "
                "makes copies",
            )
    if value(tree, "explorer", "engine", "use") != "vllm":
        return
    try:
        parallel = parallel_sizes(options)
    except RecipeError as err:
        wrong = next(name for name in SIZES if name in str(err))
        yield Problem((*_OPTIONS, wrong), str(err).split(" is ", 1)[1])
        return
    for name, why in _unfit(tree, parallel):
        yield Problem((*_OPTIONS, name), why)
    if parallel.served:
        yield from _places(tree, parallel)


def colocation_problems(tree: Tree) -> Iterator[Problem]:
    """Engines that cannot sleep, and runs in which engine and trainer work at the same time."""
    if value(tree, "placement", "colocate") is not True:
        return
    if tree.get("mode") != Mode.ONLINE:
        yield Problem(("placement", "colocate"), "only mode online has engine and trainer; remove it")
        return
    if not value(tree, "placement", "explorers", "gpus") and (seen := visible_devices()):
        yield Problem(
            ("placement", "explorers", "gpus"),
            f"'colocate' shares GPUs, and this is 0 on a machine that shows {len(seen)}; give explorers and "
            "trainer the same number from 1 (0 is for a machine without, where vLLM's sleep frees nothing)",
        )
    engine = value(tree, "explorer", "engine", "use")
    if engine != "vllm":
        yield Problem(
            ("placement", "colocate"), f"the engine '{engine}' cannot sleep; use vllm, or GPUs for each"
        )
    sync = value(tree, "sync")
    if value(sync, "every") not in (None, 1) or value(sync, "max_staleness") not in (None, 0):
        yield Problem(
            ("placement", "colocate"),
            "engine and trainer work at the same time where rollouts may be stale; use "
            "sync: {every: 1, max_staleness: 0}, or GPUs for each",
        )


def reward_device_problems(tree: Tree) -> Iterator[Problem]:
    """Reward models on GPUs that their explorer does not see; one process sees those of its machine."""
    place = value(tree, "placement")
    gpus = value(place, "explorers", "gpus") or 0
    if value(place, "use") not in ("local", "ray") or not isinstance(gpus, int | float):
        return
    for loc, device in _reward_devices(tree):
        number = gpu_number(device)
        if number is not None and number >= gpus:
            yield Problem(
                (*loc, "args", "device"),
                f"each explorer sees placement.explorers.gpus {gpus:g} of the GPUs, numbered from 0, and "
                f"'{device}' is none of them; give {number + 1} there (its engine takes the first), or "
                "device: cpu",
            )


def too_few_gpus(tree: Tree) -> Iterator[Problem]:
    """A local placement that asks for more GPUs than there are.

    Nothing is said where there is none: recipes for other machines are written there.
    """
    place = value(tree, "placement")
    if value(place, "use") != "local" or value(place, "colocate") is True:
        return
    count, each, trainer = (
        found if isinstance(found := value(place, *keys), int | float) else default
        for keys, default in (
            (("explorers", "count"), 1),
            (("explorers", "gpus"), 0),
            (("trainer", "gpus"), 0),
        )
    )
    least = value(place, "explorers", "count", "min")
    count = least if isinstance(least, int) else count
    wanted = count * each + trainer
    if wanted and (seen := len(visible_devices())) and wanted > seen:
        yield Problem(
            ("placement", "explorers", "gpus") if each else ("placement", "trainer", "gpus"),
            f"{count:g} explorers with {each:g} GPUs and a trainer with {trainer:g} need {wanted:g}, and "
            f"this machine shows {seen}; ask for fewer, or give CUDA_VISIBLE_DEVICES more",
        )


def _reward_devices(tree: Tree) -> Iterator[tuple[Loc, str]]:
    """(place, device) of every reward model whose device is written."""
    for loc, one in entries(tree, "explorer", "reward"):
        device = value(one, "args", "device")
        if one.get("use") == "reward_model" and isinstance(device, str):
            yield loc, device


def _unfit(tree: Tree, parallel: Parallel) -> Iterator[tuple[str, str]]:
    path, built = value(tree, "model", "path"), value(tree, "model", "build")
    if isinstance(path, str):
        yield from unfit(Path(path), parallel)
    elif isinstance(built, Mapping):
        shape = {
            "num_attention_heads": built.get("num_heads", 4),
            "num_hidden_layers": built.get("num_layers", 4),
        }
        yield from unfit_shape(shape, parallel)


def _places(tree: Tree, parallel: Parallel) -> Iterator[Problem]:
    gpus = value(tree, "placement", "explorers", "gpus")
    numbers = [number for _, device in _reward_devices(tree) if (number := gpu_number(device)) is not None]
    wanted = max([parallel.devices, *(number + 1 for number in numbers)])
    if isinstance(gpus, int | float) and gpus not in (0, wanted):
        others = "" if wanted == parallel.devices else f", and its reward models have {numbers}"
        yield Problem(
            ("placement", "explorers", "gpus"),
            f"each explorer has {gpus:g}, and its engine spreads over {parallel.devices} devices "
            f"({parallel}){others}; give {wanted}, or 0 for CPUs",
        )
