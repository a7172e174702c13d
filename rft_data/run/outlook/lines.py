"""Needs and work of a run in lines for a person: for `rft recipe explain`, and for the page's form."""

from __future__ import annotations

from collections.abc import Iterator

from rft_data.core.text import size_text
from rft_data.placement.machine import ROLE_BYTES, total_bytes
from rft_data.recipe.kinds import (
    that_cleans_data,
    that_explores_and_trains,
    that_measures,
    that_only_explores,
    that_trains_on_stored_groups,
    with_explorers,
    with_model,
    with_offline_stages,
    with_reinforcement,
    with_tasks,
)
from rft_data.recipe.recipe import Recipe, RunRecipe
from rft_data.run.doctor.machine import gpu_lines
from rft_data.run.outlook.batches import batch_lines, counted, staleness_line
from rft_data.run.outlook.contacts import contacts
from rft_data.run.outlook.disk import disk_line
from rft_data.run.outlook.epochs import stored_groups_line, task_lines
from rft_data.run.outlook.hub_models import known_size, unknown
from rft_data.run.outlook.model_size import Look, ModelSize, model_size, played_models
from rft_data.run.outlook.offline import counted_in, stage_lines, stage_places
from rft_data.run.outlook.places import Place, engine_places, together, trainer_place
from rft_data.run.outlook.played import at_a_time, data_lines, evaluation_line, explored_lines, measured_lines
from rft_data.run.outlook.resuming import folder_line
from rft_data.run.outlook.verdicts import Cards, cards_in, given_cards, verdicts

Line = tuple[str, str]
"""A subject, and what is known of it in words."""


def outlook_lines(recipe: Recipe, gpu_memory: str | None = None) -> list[str]:
    """One line for each thing that is known before the run, as `what: words`.

    Args: gpu_memory: memory of each GPU of the machine where the run will be, like `80GB`; None: the GPUs
        of this machine are asked.
    Raises: RecipeError for a text that is no size.
    """
    run, tasks = with_model(recipe), with_tasks(recipe)
    lines: list[Line] = [] if tasks is None else list(task_lines(tasks))
    if (cleans := that_cleans_data(recipe)) is not None:
        lines += data_lines(cleans)
    if run is not None:
        cards = cards_in(gpu_lines()) if gpu_memory is None else given_cards(gpu_memory)
        lines += [*run_lines(run, known_size, cards, here=True), ("where", _where(run))]
    hosts = contacts(recipe)
    lines += [("contacts", f"{host}, for {why}") for host, why in hosts.items()]
    if not hosts:
        lines.append(("contacts", "no host"))
    if run is not None:
        lines.append(("folder", folder_line(run)))
    return [f"{what:<12} {words}" for what, words in lines]


def run_lines(
    recipe: RunRecipe, look: Look, cards: Cards | None = None, *, here: bool = False
) -> Iterator[Line]:
    """Needs and work of a run: batches, staleness, memory, disk.

    Args: look: gives the size of the model in a folder that the recipe names; None where it reads no folder.
        cards: the GPUs that it would have, where known. here: whether other files of this machine may be
        read: the buffer, and folders of models to measure.
    """
    models = played_models(recipe, here=here)
    if (staged := with_offline_stages(recipe)) is not None:
        yield from stage_lines(staged, counted_in(staged) if here else None)
    trains = that_trains_on_stored_groups(recipe) if here else None
    if trains is not None and (stored := stored_groups_line(trains)) is not None:
        yield "groups", stored
    yield from _arithmetic(recipe, len(models))
    playing = with_explorers(recipe)
    if playing is not None and playing.explorer.base_url is not None:
        yield "memory", f"none of a model here: it is served at {playing.explorer.base_url}"
        return
    sizes = [size for one in models if (size := model_size(one, look)) is not None]
    if not sizes:
        named = str(models[0].path if models else _first_model(recipe))
        why = unknown(named) if here else f"'{named}' is not looked at here"
        yield "memory", f"not known: {why}"
        return
    size = max(sizes, key=lambda one: one.parameters)
    yield "model", f"{_number(size.parameters)} parameters"
    yield from _memory(recipe, size, look, cards)
    yield "disk", disk_line(recipe, size, len(models))


def _arithmetic(recipe: RunRecipe, models: int) -> Iterator[Line]:
    """The arithmetic of what is played and trained by reinforcement. `models`: how many are measured."""
    training = with_reinforcement(recipe)
    if training is not None:
        yield from batch_lines(training)
        yield "staleness", staleness_line(training)
        online = that_explores_and_trains(recipe)
        if online is not None and (measured := evaluation_line(online)) is not None:
            yield "evaluation", measured
    elif (explores := that_only_explores(recipe)) is not None:
        yield from explored_lines(explores)
    elif (measures := that_measures(recipe)) is not None:
        yield from measured_lines(measures, models)


def _memory(recipe: RunRecipe, size: ModelSize, look: Look, cards: Cards | None) -> Iterator[Line]:
    inline = recipe.placement.use == "inline"
    found = list(_places(recipe, size, look, shared_gpu=inline and cards is not None))
    for place in found:
        yield "memory", _needed(place)
    on_cpu = together(found, lambda one: 0 if one.gpus else one.total * one.count)
    if on_cpu and recipe.placement.use != "ray" and not (inline and cards):
        own = [one for one in found if not one.gpus and not one.name.startswith("reward")]
        there, processes = total_bytes(), 1 if inline else together(own, lambda one: one.count)
        needed = on_cpu + processes * ROLE_BYTES
        verdict = "fits" if needed < there else "DOES NOT FIT"
        other = "" if cards or not inline else "; --gpu-memory 80GB says how it is on a GPU of 80 GB"
        yield (
            "memory",
            f"on the CPU: about {size_text(needed)} of {size_text(there)}, {verdict} (libraries in "
            f"{counted(processes, 'process')} take {size_text(processes * ROLE_BYTES)} of it){other}",
        )
    asked = together(found, lambda one: 0 if one.shared else int(1000 * one.gpus * one.count)) / 1000
    if cards is not None:
        yield from (("fits", words) for words in verdicts(found, cards))
    elif asked:
        yield (
            "memory",
            f"on GPUs: {asked:g} of them; no share of one may need more than the card has (--gpu-memory 80GB "
            "says whether it fits on one of 80 GB)",
        )


def _places(recipe: RunRecipe, size: ModelSize, look: Look, *, shared_gpu: bool) -> Iterator[Place]:
    """The processes that need memory: offline stages, trainer, engines, reward models."""
    if (staged := with_offline_stages(recipe)) is not None:
        yield from stage_places(staged, size, shared_gpu=shared_gpu)
    training = with_reinforcement(recipe)
    if training is not None:
        yield trainer_place(training, size, shared_gpu=shared_gpu)
    playing = with_explorers(recipe)
    if playing is not None:
        yield from engine_places(playing, size, look, at_a_time(playing), shared_gpu=shared_gpu)


def _needed(place: Place) -> str:
    parts = ", ".join(f"{name} {size_text(count)}" for name, count in place.parts.items())
    each = f", each of {place.count}" if place.count > 1 else ""
    where = f" of {place.gpus:g} GPU" if place.gpus else ""
    return f"{place.name}{each}: about {size_text(place.total)}{where} ({parts})"


def _where(recipe: RunRecipe) -> str:
    place = recipe.placement
    if place.use == "inline":
        turns = ", which explores and trains in turn" if that_explores_and_trains(recipe) else ""
        return f"one process{turns}"
    processes = counted(place.trainer.processes, "trainer process")
    least, explorers = place.explorers.least, counted(place.explorers.most, "explorer")
    return (
        f"{place.use}: {explorers if least == place.explorers.most else f'{least} to {explorers}'} with "
        f"{_devices_text(place.explorers.cpus, place.explorers.gpus)} each; {processes} with "
        f"{_devices_text(place.trainer.cpus, place.trainer.gpus)} together"
    )


def _devices_text(cpus: float, gpus: float) -> str:
    return f"{cpus:g} {'CPU' if cpus == 1 else 'CPUs'}, {gpus:g} {'GPU' if gpus == 1 else 'GPUs'}"


def _number(count: int) -> str:
    for unit, name in ((10**9, " billion"), (10**6, " million")):
        if count >= unit:
            return f"{count / unit:.1f}{name}"
    return f"{count:,}"


def _first_model(recipe: RunRecipe) -> str:
    measures = that_measures(recipe)
    return "" if measures is None else measures.models[0]
