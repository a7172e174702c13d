"""A finished run goes on past its last step, as one run of all the steps would have gone."""

import json
from pathlib import Path

import pytest

from rft_data.core.errors import RecipeError, ResumeError
from rft_data.core.rows import Task
from rft_data.recipe.extending import check_more_steps, same_but_longer
from rft_data.recipe.load import load_recipe, load_run
from rft_data.recipe.recipe import RunRecipe
from rft_data.run.outlook.resuming import folder_line
from rft_data.run.start import run_recipe
from tests.rft_data.cli.test_cli import rft
from tests.rft_data.run.test_exact_resume import trained
from tests.rft_data.run.test_online import write_recipe


def uneven(task: Task, completion: str) -> float:
    """A reward that differs between answers of a random model."""
    return (sum(completion.encode()) % 7) / 7


CHANGES = [
    "~experts",
    "~stages.0",
    "~experience_ops.1",
    "explorer.reward=[{use: 'tests.rft_data.run.test_extending:uneven', name: exact_answer}]",
    "stages.0.groups_per_step=2",
    "stages.0.trl={learning_rate: 1.0e-3, lr_scheduler_type: constant}",
    "evaluation={limit: 2, every: 2, samples: 2, threshold: 0.5}",  # draws from the engine's random numbers
]


def recipe(root: Path, steps: int, *changes: str) -> RunRecipe:
    root.mkdir(exist_ok=True)
    loaded = load_recipe(write_recipe(root, steps=steps), [*CHANGES, *changes])
    assert isinstance(loaded, RunRecipe)
    return loaded


@pytest.mark.heavy
def test_a_run_with_more_steps_ends_with_the_weights_of_one_that_had_them_from_the_start(
    tmp_path: Path,
) -> None:
    straight, longer = tmp_path / "straight", tmp_path / "longer"
    run_recipe(recipe(straight, 4))
    first = run_recipe(recipe(longer, 2))
    assert run_recipe(load_run(longer / "run")) == first, "it is complete"
    assert "shows its summary, and trains nothing" in folder_line(recipe(longer, 2))
    assert "a start goes on from checkpoint 2 of 4 steps; " in folder_line(recipe(longer, 4))
    assert "of another recipe, which this one cannot continue (seed: 0 -> 5)" in folder_line(
        recipe(longer, 4, "seed=5")
    )
    done = run_recipe(load_run(longer / "run", ["steps=4"]))
    assert done["consumed_steps"] == 4
    assert trained(longer) == trained(straight)
    weights = [
        root / "run" / "checkpoints" / "checkpoint-4" / "model.safetensors" for root in (longer, straight)
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    first_step = longer / "run" / "checkpoints" / "checkpoint-2" / "model.safetensors"
    assert weights[0].read_bytes() != first_step.read_bytes(), "nothing was learned"
    assert run_recipe(load_run(longer / "run")) == done, "resumed without steps it has the new number"
    assert run_recipe(recipe(longer, 4)) == done, "and so has the recipe"
    assert json.loads(rft("resume", str(longer / "run"), "--json").stdout) == done
    with pytest.raises(ResumeError, match=r"stages\.0\.steps: 4 -> 3"):
        run_recipe(recipe(longer, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("{}", "it is 'linear'"),
        ("{lr_scheduler_type: cosine}", "it is 'cosine'"),
        ("{lr_scheduler_type: constant_with_warmup, warmup_ratio: 0.1}", "its warm-up is a share"),
        ("{lr_scheduler_type: constant_with_warmup, warmup_steps: 0.1}", "its warm-up is a share"),
        ("{lr_scheduler_type: constant_with_warmup, warmup_steps: 5}", None),
        ("{lr_scheduler_type: constant}", None),
    ],
)
def test_a_learning_rate_that_follows_the_number_of_steps_refuses_more_of_them(
    tmp_path: Path, options: str, why: str | None
) -> None:
    before = recipe(tmp_path, 2, f"stages.0.trl={options}").saved()
    after = recipe(tmp_path, 5, f"stages.0.trl={options}")
    assert same_but_longer(before, after) == after.saved()
    if why is None:
        check_more_steps(before, after)
        return
    with pytest.raises(
        ResumeError, match=f"from 2 to 5 steps: its learning rate depends .*{why}.*lr_scheduler_type"
    ):
        check_more_steps(before, after)


@pytest.mark.slow
def test_only_more_steps_are_taken_as_going_on(tmp_path: Path) -> None:
    before = recipe(tmp_path, 4).saved()
    for after in (recipe(tmp_path, 4), recipe(tmp_path, 3)):
        assert same_but_longer(before, after) is before
    longer = same_but_longer(before, recipe(tmp_path, 5, "seed=3"))
    assert longer["seed"] == before["seed"], "what else differs is refused as ever"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seed=3", "'seed=3' cannot be given to rft resume.*steps=NUMBER"),
        ("steps=many", "'steps=many' cannot be given"),
        ("groups=9", "of mode 'online' has no groups that could be more; give steps=NUMBER"),
        ("steps=1", "steps=1 is less than the 2 that the run was to take"),
    ],
)
def test_resume_takes_more_steps_and_nothing_else(tmp_path: Path, change: str, message: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    stored = recipe(tmp_path, 2)
    (folder / "recipe.json").write_text(json.dumps(stored.saved()))
    assert load_run(folder, ["steps=7"]).saved()["stages"][0]["steps"] == 7  # type: ignore[index]
    with pytest.raises(RecipeError, match=message):
        load_run(folder, [change])
