"""Synchronous runs broken off again and again end with the weights and the books of one that was not.

Some of the steps go ahead with fewer groups, and most rounds are refilled. The breaks are
drawn as in `tests/rft_data/loop/test_broken_runs.py`; `RFT_BREAKS=all` adds runs with processes of their own
and with vLLM, and breaks each off at every failpoint.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core import failpoints
from rft_data.core.errors import RftError
from rft_data.recipe import load_recipe
from rft_data.recipe.recipe import RunRecipe
from rft_data.run.start import run_recipe
from tests.rft_data.loop.test_broken_runs import ALL, LONG, SEED
from tests.rft_data.run.test_online import check_books, grants, write_recipe

BREAKS = (
    ("store.write", 40),
    ("append.ack", 25),
    ("explore.started", 4),  # rows are stored, nobody has looked at them
    ("judge.annotated", 3),  # operators have judged, the groups are not closed
    ("judge.closed", 3),
    ("lease.granted", 3),
    ("step.begin", 2),
    ("step.done", 3),  # the optimizer step is taken, its weights are nowhere
    ("publish.written", 2),
    ("publish.renamed", 2),
    ("publish.recorded", 3),
    ("checkpoint.written", 1),
    ("checkpoint.sealed", 1),
    ("settle.consume", 1),  # the checkpoint is complete, its consumption is not written down
    ("settle.consumed", 1),
)
"""Failpoints, and the latest pass of each at which a run is broken off."""
STEPS = 6
ENGINES = (
    {"transformers": ["inline", "local"], "vllm": ["inline", "local"]}
    if ALL
    else {"transformers": ["inline"]}
)
PLACES = [(engine, place) for engine, places in ENGINES.items() for place in places]


def recipe(root: Path, engine: str, place: str) -> RunRecipe:
    """A run whose steps go ahead after 16 groups, also if fewer than eight of them may be trained."""
    root.mkdir()
    path = write_recipe(root, engine, steps=STEPS)
    changes = [
        "stages.0.trl.num_train_epochs=12",
        "stages.1.checkpoint_every=2",
        "stages.1.groups_per_step=8",
        "stages.1.max_explored=2",
        "stages.1.trl.learning_rate=1.0e-5",
        "evaluation.limit=4",
        "evaluation.every=3",
        "evaluation.samples=2",  # sampled, so they draw from the engine's random numbers
    ]
    return load_recipe(path, [*changes, *([] if place == "inline" else [f"placement.use={place}"])])


def trained(root: Path) -> list[list[tuple[str, ...]]]:
    """Per step, what it was trained on."""
    with Buffer(root / "run" / "buffer", read_only=True) as buffer:
        rows = {row["seq"]: row for row in buffer.read("experiences").to_pylist()}
        leases = sorted(grants(buffer), key=lambda lease: lease["step"])
    names = ("task_id", "member", "token_ids", "logprobs", "reward")
    return [[tuple(str(rows[seq][name]) for name in names) for seq in lease["seqs"]] for lease in leases]


def weights(root: Path) -> bytes:
    return (root / "run" / "checkpoints" / f"checkpoint-{STEPS}" / "model.safetensors").read_bytes()


def drawn() -> list[tuple[str, int]]:
    """Six breaks in a random order, or one at every failpoint."""
    draw = random.Random(SEED)  # noqa: S311 - no secret
    return [(name, draw.randint(1, last)) for name, last in draw.sample(BREAKS, len(BREAKS) if ALL else 6)]


@LONG
@pytest.mark.slow
@pytest.mark.parametrize(("engine", "place"), PLACES)
def test_a_run_broken_off_at_random_ends_with_the_weights_of_a_straight_one(
    tmp_path: Path, engine: str, place: str
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run_recipe(recipe(straight, engine, place))
    sizes = {len(rows) for rows in trained(straight)}
    assert len(sizes) > 1, "every step is full"
    again = recipe(broken, engine, place)
    breaks = drawn()
    for name, at in breaks:
        with failpoints.armed(name, at) as armed:
            try:
                run_recipe(again)
            except (OSError, RftError):
                assert armed.passes >= at, f"RFT_BREAKS_SEED={SEED}: it ended by itself, after {breaks}"
    run_recipe(again)
    assert trained(broken) == trained(straight), f"RFT_BREAKS_SEED={SEED}: broken off at {breaks}"
    assert weights(broken) == weights(straight), f"RFT_BREAKS_SEED={SEED}: broken off at {breaks}"
    check_books(straight, steps=STEPS)
