"""A synchronous run broken off again and again ends with the weights and the books of one that was not."""

from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core import failpoints
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe
from tests.rft_data.run.test_online import check_books, grants, write_recipe

BREAKS = (
    ("explore.started", 2),  # rows are stored, nobody has looked at them
    ("judge.annotated", 1),  # operators have judged, the groups are not closed
    ("lease.granted", 1),
    ("step.done", 1),  # the optimizer step is taken, its weights are nowhere
    ("publish.renamed", 2),
    ("checkpoint.written", 1),
    ("settle.consume", 2),  # the checkpoint is complete, its consumption is not written down
)
STEPS = 5


def trained(root: Path) -> list[list[tuple]]:
    """Per step, what it was trained on."""
    with Buffer(root / "run" / "buffer", read_only=True) as buffer:
        rows = {row["seq"]: row for row in buffer.read("experiences").to_pylist()}
        leases = sorted(grants(buffer), key=lambda lease: lease["step"])
    names = ("task_id", "member", "token_ids", "logprobs", "reward")
    return [[tuple(str(rows[seq][name]) for name in names) for seq in lease["seqs"]] for lease in leases]


@pytest.mark.slow
def test_a_run_broken_at_every_stage_of_a_step_ends_with_the_weights_of_a_straight_one(
    tmp_path: Path,
) -> None:
    recipes = {}
    for name in ("straight", "broken"):
        (tmp_path / name).mkdir()
        path = write_recipe(tmp_path / name, steps=STEPS)
        recipes[name] = load_recipe(path, ["stages.1.checkpoint_every=1", "evaluation.limit=4"])
    run_recipe(recipes["straight"])
    for name, at in BREAKS:
        with pytest.raises(OSError, match=name), failpoints.armed(name, at):
            run_recipe(recipes["broken"])
    run_recipe(recipes["broken"])
    assert trained(tmp_path / "broken") == trained(tmp_path / "straight")
    weights = [
        (tmp_path / name / "run" / "checkpoints" / f"checkpoint-{STEPS}" / "model.safetensors").read_bytes()
        for name in recipes
    ]
    assert weights[0] == weights[1]
    check_books(tmp_path / "straight", steps=STEPS)
