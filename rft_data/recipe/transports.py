"""The ways of published weights to the engines that fit a recipe's placement, and the one that `auto` is.

It looks at the recipe, and at whether Ray is encrypted here. What a way needs beside the run is started in
`rft_data/run/transports.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rft_data.core.network import ray_is_encrypted
from rft_data.recipe.running import PlacementSection
from rft_data.recipe.sections import ENDPOINT, EngineSection

AUTO = "auto"


def named_way(engine: EngineSection, place: PlacementSection) -> tuple[str, str]:
    """The way that the weights of these explorers go, and who chose it and why."""
    use: str = engine.transport.use
    return (use, "the recipe has it so") if use != AUTO else _suggested(engine, place)


def with_usual_way(tree: object) -> object:
    """A recipe's tree in which `auto` is the way where none is named and roles are on nodes of a cluster."""
    if not isinstance(tree, dict):
        return tree
    explorer, place = tree.get("explorer"), tree.get("placement")
    if not isinstance(explorer, dict) or not isinstance(place, dict) or place.get("use") != "ray":
        return tree
    engine = explorer.get("engine")
    if not isinstance(engine, dict) or "transport" in engine:
        return tree
    if engine.get("use") == ENDPOINT:  # it has no weights
        return tree
    return {**tree, "explorer": {**explorer, "engine": {**engine, "transport": {"use": AUTO}}}}


def check_transport(engine: EngineSection, place: PlacementSection) -> None:
    """Refuse a way that the engine or the placement of a recipe cannot go.

    Raises: ValueError.
    """
    use = engine.transport.use
    if use in _RULES and (problem := _RULES[use](engine, place)):
        raise ValueError(f"'explorer.engine.transport' is '{use}', {problem}, or 'auto'")


def _of_ray(engine: EngineSection, place: PlacementSection) -> str:
    if place.use == "ray":
        return ""
    return f"which needs 'placement.use: ray', found '{place.use}'; use 'shm' or 'directory' on one machine"


def _of_processes(engine: EngineSection, place: PlacementSection) -> str:
    if place.use == "inline":
        return (
            "which sends weights to other processes, and with 'placement.use: inline' there are none; use "
            "'directory'"
        )
    if engine.use == "routed":
        return "which reaches one engine per explorer, and 'routed' has several; use 'shm' or 'ray'"
    return ""


def _of_nccl(engine: EngineSection, place: PlacementSection) -> str:
    if place.colocate:
        return (
            "which broadcasts between GPUs of their own, and with 'placement.colocate' trainer and explorer "
            "share them; use 'gloo' or 'shm'"
        )
    gpus = {"explorers": place.explorers.gpus, "trainer": place.trainer.gpus}
    for name, count in gpus.items():
        if count < 1:
            return (
                f"which broadcasts between GPUs of their own, from the trainer's to the explorers', and "
                f"'placement.{name}.gpus' is {count:g}; give both 1 or more, or use 'gloo' or "
                f"'{'ray' if place.use == 'ray' else 'shm'}'"
            )
    return _of_processes(engine, place)


def _of_ipc(engine: EngineSection, place: PlacementSection) -> str:
    if place.use == "ray":
        return (
            "which hands over memory inside one GPU, and on Ray no explorer shares a GPU with the trainer or "
            "the run ('placement.colocate' is for 'local'); use 'nccl', 'ray' or 'gloo'"
        )
    together = place.explorers.gpus * place.explorers.most
    if not 0 < together <= 1:
        return (
            "which hands over memory of one GPU that all explorers share, and 'placement.explorers' asks for "
            f"{together:g} in all; give each a part of one, or use 'gloo' or 'shm'"
        )
    if engine.use != "vllm":
        return f"which only the engine 'vllm' takes, found '{engine.use}'; use 'shm'"
    return _of_processes(engine, place)


def _suggested(engine: EngineSection, place: PlacementSection) -> tuple[str, str]:
    """The ways that fit a placement, and why."""
    if place.use == "inline":
        return "directory", "explorers and trainer are one process"
    if place.use == "ray":
        return _suggested_on_ray(engine, place)
    if place.explorers.gpus and not _of_nccl(engine, place):
        return "nccl", "explorers and trainer have GPUs of their own on one machine"
    if not _of_ipc(engine, place):
        return (
            "ipc",
            "trainer and explorers share one GPU" if place.colocate else "all explorers share one GPU",
        )
    return "shm", "explorers are processes of one machine"


def _suggested_on_ray(engine: EngineSection, place: PlacementSection) -> tuple[str, str]:
    if _of_nccl(engine, place):
        return "ray", "explorers may be on nodes that do not see the run's folder"
    if ray_is_encrypted():
        return "ray", "Ray is encrypted here (RAY_USE_TLS), and 'nccl', between GPUs, is not"
    return "nccl", (
        "explorers and trainer have GPUs of their own; it is sent from the run's node, or by 'gloo' if that "
        "has no GPU but the explorers'"
    )


_RULES: Mapping[str, Callable[[EngineSection, PlacementSection], str]] = {
    "ray": _of_ray,
    "gloo": _of_processes,
    "nccl": _of_nccl,
    "ipc": _of_ipc,
}
"""The mistake in a way, in words; empty if there is none."""
