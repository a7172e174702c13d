"""What a run would come to, in lines for a person: of `rft recipe explain`, and of the page's form."""

from __future__ import annotations

from collections.abc import Iterator

from rft_data.core.scratch import on_store, working_folder
from rft_data.core.text import size_text
from rft_data.placement.machine import total_bytes
from rft_data.recipe.kinds import with_model, with_reinforcement
from rft_data.recipe.modes import TrainingRecipe
from rft_data.recipe.recipe import Recipe, RunRecipe
from rft_data.run.doctor.machine import gpu_lines
from rft_data.run.outlook.batches import batch_lines, counted, most_sampled, staleness_line
from rft_data.run.outlook.contacts import contacts
from rft_data.run.outlook.model_size import Look, ModelSize, folder_size, size_of
from rft_data.run.outlook.places import Place, places
from rft_data.run.status import run_status
from rft_data.weights.checkpoint import KEPT

_ROW_BYTES, _TOKEN_BYTES = 2_000, 20
"""A stored rollout, about: names, text and digests, and for each token its id, logprob, masks and text."""


def outlook_lines(recipe: Recipe) -> list[str]:
    """One line for each thing that is known before the run, as `what: words`."""
    training, run = with_reinforcement(recipe), with_model(recipe)
    lines = [] if training is None else list(training_lines(training))
    if run is not None:
        lines.append(("where", _where(run)))
    hosts = contacts(recipe)
    lines += [("contacts", f"{host}, for {why}") for host, why in hosts.items()]
    if not hosts:
        lines.append(("contacts", "no host"))
    if run is not None:
        lines.append(("folder", _folder(run.run_dir)))
    return [f"{what:<12} {words}" for what, words in lines]


def training_lines(recipe: TrainingRecipe, look: Look = folder_size) -> Iterator[tuple[str, str]]:
    """What its training would come to: batches, staleness, memory, disk; each as what and words.

    Args: look: sizes up the model in a folder that the recipe names; None where it looks at none.
    """
    yield from batch_lines(recipe)
    yield "staleness", staleness_line(recipe)
    size = size_of(recipe.model, look)
    if size is None:
        yield "memory", f"not known: '{recipe.model.path}' is no folder here with safetensors files"
        return
    yield "model", f"{_number(size.parameters)} parameters"
    cards = gpu_lines() if recipe.placement.use == "inline" else []
    found = list(places(recipe, size, look, shared_gpu=bool(cards)))
    for place in found:
        yield "memory", _memory(place)
    if cards:
        total = sum(place.total for place in found if place.shared)
        yield "memory", f"on the GPU, which they share: about {size_text(total)}; it is {cards[0]}"
    else:
        yield from _devices(recipe, found)
    yield "disk", _disk(recipe, size)


def _memory(place: Place) -> str:
    parts = ", ".join(f"{name} {size_text(count)}" for name, count in place.parts.items())
    each = f", each of {place.count}" if place.count > 1 else ""
    where = f" of {place.gpus:g} GPU" if place.gpus else ""
    return f"{place.name}{each}: about {size_text(place.total)}{where} ({parts})"


def _devices(recipe: TrainingRecipe, found: list[Place]) -> Iterator[tuple[str, str]]:
    """What the CPU's memory would have to hold, beside what there is."""
    on_cpu = sum(place.total * place.count for place in found if not place.gpus)
    if on_cpu and recipe.placement.use != "ray":
        there = total_bytes()
        verdict = "fits" if on_cpu < there else "DOES NOT FIT"
        yield "memory", f"on the CPU: about {size_text(on_cpu)} of {size_text(there)}, {verdict}"
    cards = sum(place.gpus * place.count for place in found)
    if cards:
        yield "memory", f"on GPUs: {cards:g} of them; no share of one may need more than the card has"


def _disk(recipe: TrainingRecipe, size: ModelSize) -> str:
    stage = recipe.rl
    trained = size.parameters if stage.lora is None else size.adapter_parameters(stage.lora)
    kept = KEPT * trained * 12 + KEPT * trained * 4
    words = f"about {size_text(kept)} for {KEPT} checkpoints and {KEPT} versions"
    if recipe.explorer is None:
        return words
    row = _ROW_BYTES + _TOKEN_BYTES * most_sampled(recipe.explorer)
    rows = 1000 * stage.groups_per_step * recipe.group_size
    return f"{words}; at most {size_text(rows * row)} of rows per 1,000 steps, more where groups are dropped"


def _where(recipe: RunRecipe) -> str:
    place = recipe.placement
    if place.use == "inline":
        return "one process, which explores and trains in turn"
    processes = counted(place.trainer.processes, "trainer process")
    least, explorers = place.explorers.least, counted(place.explorers.most, "explorer")
    return (
        f"{place.use}: {explorers if least == place.explorers.most else f'{least} to {explorers}'} with "
        f"{_devices_text(place.explorers.cpus, place.explorers.gpus)} each; {processes} with "
        f"{_devices_text(place.trainer.cpus, place.trainer.gpus)} together"
    )


def _devices_text(cpus: float, gpus: float) -> str:
    return f"{cpus:g} {'CPU' if cpus == 1 else 'CPUs'}, {gpus:g} {'GPU' if gpus == 1 else 'GPUs'}"


def _folder(named: str) -> str:
    run_dir = working_folder(named)
    if on_store(named):
        return f"'{named}', which is not looked at here; the run works in '{run_dir}'"
    if not (run_dir / "recipe.json").is_file():
        return f"'{run_dir}' holds no run: this would be its first start"
    found = run_status(run_dir)
    where = "from its beginning" if found.checkpoint is None else f"from checkpoint {found.checkpoint[0]}"
    return f"'{run_dir}' holds a run ({found.standing.state}), which would go on {where}"


def _number(count: int) -> str:
    for unit, name in ((10**9, " billion"), (10**6, " million")):
        if count >= unit:
            return f"{count / unit:.1f}{name}"
    return f"{count:,}"
