"""feedback_mapper: what was said later joins the row it is about, and fills its reward."""

import math
from pathlib import Path

import pyarrow as pa
import pytest

from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.core.errors import OperatorError, RecipeError
from rft_data.core.rows import Feedback
from tests.rft_data.conftest import make_experience


@pytest.fixture
def stored(tmp_path: Path):
    """Four rollouts of one group, rewards 1, null, null, 0; feedback about the first three."""
    with Buffer(tmp_path / "buffer") as buffer:
        rewards = [1.0, None, None, 0.0]
        rows = [
            make_experience(n, reward=reward, unscored_reason="later" if reward is None else None)
            for n, reward in enumerate(rewards)
        ]
        buffer.append(rows)
        ids = [row.experience_id for row in rows]
        buffer.add_feedback(
            [
                Feedback(ids[0], "ann", "reward", 0.25),
                Feedback(ids[1], "ann", "reward", 0.5),
                Feedback(ids[1], "bob", "reward", 1.0),
                Feedback(ids[2], "ann", "score", 4.0),
            ]
        )
        yield buffer


def mapped(operator, stored: Buffer, table: pa.Table | None = None, **args: object) -> pa.Table:
    op = operator("feedback_mapper", **args)
    op.attach(stored)
    return op.process_table(stored.take([0, 1, 2, 3]) if table is None else table)


@pytest.mark.parametrize(("how", "second"), [("last", 1.0), ("mean", 0.75), ("sum", 1.5)])
def test_missing_rewards_are_filled_and_known_ones_stay(
    operator, stored: Buffer, how: str, second: float
) -> None:
    table = mapped(operator, stored, how=how)
    assert table["reward"].to_pylist() == [1.0, second, None, 0.0]
    assert table["feedback_reward"].to_pylist() == [0.25, second, None, None]
    assert table["unscored_reason"].to_pylist() == [None, None, "later", None]
    assert table.schema.field("reward").type == pa.float32()


def test_replace_prefers_what_was_said(operator, stored: Buffer) -> None:
    table = mapped(operator, stored, replace=True)
    assert table["reward"].to_pylist() == [0.25, 1.0, None, 0.0]


def test_another_key_into_stats_leaves_rewards_alone(operator, stored: Buffer) -> None:
    table = mapped(operator, stored, key="score", into="stats")
    assert table["feedback_score"].to_pylist() == [None, None, 4.0, None]
    assert table["reward"].to_pylist() == [1.0, None, None, 0.0]


def test_shaped_reward_is_added_or_filled(operator, stored: Buffer) -> None:
    table = mapped(operator, stored, into="shaped_reward")
    assert table["shaped_reward"].to_pylist() == [0.25, 1.0, None, None]
    again = mapped(operator, stored, table, key="score", into="shaped_reward")
    assert again["shaped_reward"].to_pylist() == [0.25, 1.0, 4.0, None]
    assert again["unscored_reason"].to_pylist() == [None, "later", "later", None]


def test_a_column_of_nothing_but_nulls_is_filled(operator, stored: Buffer) -> None:
    ids = stored.take([1, 2])["experience_id"]
    table = mapped(operator, stored, pa.table({"experience_id": ids, "reward": pa.nulls(2)}))
    assert table["reward"].to_pylist() == [1.0, None]


def test_later_operators_see_the_reward_and_the_annotation_tells_it(stored: Buffer) -> None:
    operators = [{"feedback_mapper": {}}, {"reward_range_filter": {}}, {"grpo_advantage_mapper": {}}]
    pipeline = OperatorPipeline(operators, name="experience_ops", store=stored)
    rows = pipeline.run(stored.take([0, 1, 2, 3])).to_pylist()
    assert [row["verdict"] for row in rows] == ["kept", "kept", "dropped", "kept"]
    assert rows[1]["stats"] == '{"feedback_reward":1.0}'
    mean = 2 / 3
    std = math.sqrt((2 * (1 - mean) ** 2 + mean**2) / 2)
    assert rows[1]["advantage"] == pytest.approx([(1 - mean) / (std + 1e-4)])
    assert stored.take([1])["reward"].to_pylist() == [None], "the stored row was changed"


def test_in_dj_process_the_buffer_is_an_argument(operator, stored: Buffer) -> None:
    op = operator("feedback_mapper", buffer=stored.location)
    assert op.process_table(stored.take([1]))["reward"].to_pylist() == [1.0]


def test_without_a_buffer_it_says_so(operator, stored: Buffer) -> None:
    with pytest.raises(OperatorError, match="'feedback_mapper' reads stored rows and has no store"):
        operator("feedback_mapper").process_table(stored.take([0]))
    with pytest.raises((OperatorError, RecipeError), match="feedback_mapper"):
        OperatorPipeline([{"feedback_mapper": {}}], name="experience_ops").run(stored.take([0]))


@pytest.mark.parametrize("args", [{"key": ""}, {"how": "first"}, {"into": "advantage"}])
def test_bad_arguments_are_refused(operator, args: dict) -> None:
    with pytest.raises(ValueError, match="wanted a key"):
        operator("feedback_mapper", **args)


def test_no_rows_is_no_rows(operator, stored: Buffer) -> None:
    assert mapped(operator, stored, stored.take([])).num_rows == 0


@pytest.mark.slow
def test_data_juicers_own_datasets_get_the_same(operator, stored: Buffer) -> None:
    from datasets import Dataset

    rows = stored.take([0, 1, 2, 3])
    names = ["experience_id", "reward", "unscored_reason", "completion_text"]
    made = operator("feedback_mapper", buffer=stored.location).run(Dataset(rows.select(names)))
    assert made.column_names == [*names, "feedback_reward"]
    assert made["reward"][:] == mapped(operator, stored)["reward"].to_pylist()
    assert made["unscored_reason"][:] == [None, None, "later", None]
