"""Whether a run's memory fits on the GPUs that it would have, and by how much."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rft_data.core.errors import RecipeError
from rft_data.core.text import size_text
from rft_data.run.outlook.places import Cache, Place, together

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*gi?b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cards:
    """The GPUs of a machine, which are all alike."""

    bytes: int
    """Memory of each GPU."""
    what: str
    """Their name, for a person."""
    count: int | None = None
    """How many there are; None: as many as are asked for."""


def cards_in(lines: Sequence[str]) -> Cards | None:
    """The GPUs that nvidia-smi lists, taken to be like the smallest; None where none reports its memory."""
    sizes = []
    for line in lines:
        number, _, unit = line.split(",")[1].strip().partition(" ") if line.count(",") > 1 else ("", "", "")
        if number.isdigit() and unit == "MiB":
            sizes.append((int(number) << 20, line))
    return Cards(*min(sizes), len(sizes)) if sizes else None


def given_cards(text: str) -> Cards:
    """GPUs with a memory like `80GB`; a GB here is 1024^3 bytes, as makers of GPUs count.

    Raises: RecipeError for another text.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise RecipeError(f"--gpu-memory is '{text}'; give a number and GB, like 24GB or 80GB.")
    return Cards(int(float(found[1]) * 2**30), f"{found[1]} GiB")


def verdicts(found: Sequence[Place], cards: Cards) -> Iterator[str]:
    """A line for each GPU, or for several GPUs that hold the same processes."""
    shared = [one for one in found if one.shared]
    if shared:
        yield f"on the GPU, which they share ({cards.what}): {_together(shared, cards)}"
    for one in found:
        if one.gpus and not one.shared:
            yield f"{one.name}, on {_many(one)} ({cards.what}): {_alone(one, cards)}"
    asked = together(found, lambda one: 0 if one.shared else int(1000 * one.gpus * one.count)) / 1000
    if cards.count is not None and asked > cards.count:
        yield f"{asked:g} GPUs are asked for, and this machine shows {cards.count}: TOO FEW"


def _many(one: Place) -> str:
    gpus = one.count * max(1, one.gpus)
    share = "" if one.gpus >= 1 else f"{one.gpus:g} of "
    return f"{share}each of {gpus:g} GPUs" if gpus > 1 else f"{share}a GPU"


def _alone(one: Place, cards: Cards) -> str:
    """The verdict on a process that has GPUs, or a part of a GPU, for itself."""
    room = cards.bytes if one.gpus >= 1 else int(cards.bytes * one.gpus)
    if one.cache is not None:
        beside = one.on_each - one.cache.weights - one.cache.sequences * one.cache.each
        return _queueing(one.cache, room, max(0, beside))
    return _spare(one.on_each, room)


def _together(shared: Sequence[Place], cards: Cards) -> str:
    """The verdict on what is on one GPU: the trainer, and an engine that takes its share beside it."""
    engine = next((one.cache for one in shared if one.cache is not None), None)
    total = together(shared, lambda one: one.on_each)
    if engine is None:
        return _spare(total, cards.bytes)
    beside = max(0, total - engine.weights - engine.sequences * engine.each)
    taken = beside + int(engine.share * cards.bytes)
    if taken <= cards.bytes:
        return f"{_queueing(engine, cards.bytes, beside)}, {size_text(cards.bytes - taken)} left over"
    free = 1 - beside / cards.bytes
    enough = free > (engine.weights + engine.each) / cards.bytes
    return (
        f"DOES NOT FIT, by {size_text(taken - cards.bytes)}: the engine takes {engine.share:.0%} of "
        f"{size_text(cards.bytes)}, and the rest needs about {size_text(beside)}; "
        + (
            f"give gpu_memory_utilization below {free:.2f} in explorer.engine.options"
            if enough
            else "take smaller micro-batches, bfloat16 weights, LoRA, or a smaller model"
        )
    )


def _queueing(cache: Cache, room: int, beside: int) -> str:
    """The verdict on an engine that takes a share of its GPU, and queues sequences beyond it."""
    share, least = int(cache.share * room), cache.weights + cache.each
    if least > share or share + beside > room:
        short = max(least - share, share + beside - room)
        return (
            f"DOES NOT FIT, by {size_text(short)}: weights and one sequence need {size_text(least)} of the "
            f"{size_text(share)} that gpu_memory_utilization {cache.share:g} gives"
            + (f", and {size_text(beside)} stand beside it" if beside else "")
        )
    fitting = (share - cache.weights) // max(1, cache.each)
    if fitting < cache.sequences:
        return f"fits, with {fitting} of {cache.sequences} sequences at a time; the others wait their turn"
    return f"fits, with all {cache.sequences} sequences at a time"


def _spare(needed: int, room: int) -> str:
    what = f"about {size_text(needed)} of {size_text(room)}"
    return (
        f"fits, {size_text(room - needed)} to spare: {what}"
        if needed <= room
        else (f"DOES NOT FIT, by {size_text(needed - room)}: {what}")
    )
