"""Groups are explored, rejected, readmitted and trained, with every part real; the accounting adds up."""

from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.run.rejudge import readmit
from rft_data.run.start import run_recipe
from rft_data.sampler.conservation import conservation
from rft_data.sampler.ledger import CONSUMER, Ledger
from tests.rft_data.run.rejudge.explored import LENIENT, STRICT, explore, pipeline
from tests.rft_data.run.test_modes import EXPLORE, STAGE, TRAIN, recipe

REJECTING = "experience_ops:\n  - reward_range_filter: {min_reward: 100}\n  - grpo_advantage_mapper: {}\n"
ADMITTING = [{"grpo_advantage_mapper": {}}]


def books(buffer: Buffer, run_id: str) -> dict:
    return conservation(buffer, Ledger(buffer, run_id, 0), CONSUMER).as_dict()


@pytest.mark.slow
def test_the_books_of_run_and_book_both_add_up(buffer: Buffer) -> None:
    explore(buffer, [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [None, None]])
    before = books(buffer, "run")
    readmit(buffer, "run", "book", pipeline(LENIENT), groups_per_batch=2)
    assert books(buffer, "run") == before
    assert (before["residual"], before["faults"]) == (0, [])
    assert before["filtered"] == {"reward_variance_filter": 4}
    book = books(buffer, "book")
    assert (book["produced"], book["pending"], book["residual"], book["faults"]) == (4, 4, 0, [])


@pytest.mark.slow
def test_feedback_through_the_same_operators_leaves_the_runs_books_alone(buffer: Buffer) -> None:
    operators = [{"feedback_mapper": {"replace": True}}, *STRICT]
    explore(buffer, [[1.0, 1.0]], operators)
    from rft_data.core.rows import Feedback

    name = buffer.take([0]).column("experience_id")[0].as_py()
    buffer.add_feedback([Feedback(name, "judge", "reward", 0.0)])
    assert readmit(buffer, "run", "book", pipeline(operators, buffer), groups_per_batch=2).admitted == 1
    run, book = books(buffer, "run"), books(buffer, "book")
    assert (run["residual"], run["faults"], run["filtered"]) == (0, [], {"reward_variance_filter": 2})
    assert (book["pending"], book["residual"], book["faults"]) == (2, 0, [])


@pytest.mark.slow
def test_a_training_run_takes_a_readmitted_book_to_the_end(tmp_path: Path) -> None:
    explored = run_recipe(recipe(tmp_path, EXPLORE, "looking", "explore", groups=4, operators=REJECTING))
    assert explored["groups"]["dropped"] == 4
    train = TRAIN.replace("explored_by: looking", "explored_by: looking-again")
    stage = STAGE.replace("steps: 3", "steps: 2")
    with pytest.raises(RecipeError, match="no group of a run 'looking-again'"):
        run_recipe(recipe(tmp_path, train, "learning", "train", stage=stage))
    with Buffer(tmp_path / "buffer") as buffer:
        found = readmit(buffer, "looking", "looking-again", pipeline(ADMITTING), groups_per_batch=2)
        assert (found.rejected, found.admitted, found.rows) == (4, 4, 8)
    trained = run_recipe(recipe(tmp_path, train, "learning", "train", stage=stage))
    assert (trained["groups"]["trained"], trained["rows"]["trained"], trained["consumed_steps"]) == (4, 8, 2)
    with Buffer(tmp_path / "buffer") as buffer:
        for run_id in ("looking", "looking-again"):
            found = books(buffer, run_id)
            assert (found["residual"], found["faults"]) == (0, [])
        again = readmit(buffer, "looking", "looking-again", pipeline(ADMITTING), groups_per_batch=2)
        assert (again.admitted, again.already) == (0, 4)
        other = readmit(buffer, "looking", "elsewhere", pipeline(ADMITTING), groups_per_batch=2)
        assert (other.admitted, other.elsewhere) == (0, 4), "nothing is trained twice"
