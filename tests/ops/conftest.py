"""Experience tables, and operators that break on purpose."""

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest

from ops.base import ArrowFilter, ArrowMapper, Judgement, append_or_replace
from ops.runtime.hygiene import registry
from rft_data.core import codec, schema
from rft_data.core.rows import Experience
from tests.rays import ray_of


@pytest.fixture
def ray_core() -> ModuleType:
    """Ray with one core of this machine; the tests of operators share it, since it takes seconds to start."""
    return ray_of(num_cpus=1, log_to_driver=False)


def _experience(number: int, group: str, reward: float | None, text: str) -> Experience:
    return Experience(
        experience_id=f"e{number}",
        source="rollout",
        run_id="run",
        taskset="arith",
        task_id="t",
        group_id=group,
        member=number,
        token_ids=[1, 2, 3],
        prompt_length=1,
        action_mask=[0, 1, 1],
        logprobs=[0.0, -0.5, -0.25],
        completion_text=text,
        reward=reward,
        unscored_reason="grader timed out" if reward is None else None,
    )


def _experiences(
    groups: Sequence[str], rewards: Sequence[float | None], texts: Sequence[str] | None = None
) -> pa.Table:
    texts = texts or [f"the answer is {number}" for number in range(len(groups))]
    rows = [_experience(*row) for row in zip(range(len(groups)), groups, rewards, texts, strict=True)]
    table = codec.to_table(rows, schema.EXPERIENCES)
    table = table.append_column("seq", pa.array(np.arange(100, 100 + len(rows))))
    return table.append_column("digest", pa.array([""] * len(rows), pa.string()))


@pytest.fixture(scope="session")
def experiences() -> Callable[..., pa.Table]:
    """(group ids, rewards, texts=None) -> a stored EXPERIENCES table; seq starts at 100."""
    return _experiences


@pytest.fixture(scope="session")
def operator() -> Callable[..., object]:
    """(name, **arguments) -> an operator from Data-Juicer's registry."""
    return lambda name, **args: registry().modules[name](**args)


@pytest.fixture(scope="session", autouse=True)
def broken_operators() -> None:
    """Registers operators that break the contract; they need allow_unsafe."""
    registry()
    from data_juicer.ops.base_op import OPERATORS, Mapper, Pipeline

    @OPERATORS.register_module("fails_on_bad_text_mapper")
    class _FailsOnRow(ArrowMapper, Mapper):
        required_columns = ("completion_text",)

        def process_table(self, table):
            texts = table["completion_text"].to_pylist()
            if "bad" in texts:
                raise KeyError("a bad text")
            return append_or_replace(table, "length", pa.array([len(text) for text in texts], pa.int64()))

    @OPERATORS.register_module("fails_on_bad_group_filter")
    class _FailsOnGroup(ArrowFilter, Pipeline):
        group_key = "group_id"
        required_columns = ("group_id", "completion_text")

        def judge(self, table):
            if "bad" in table["completion_text"].to_pylist():
                raise ZeroDivisionError("a bad group")
            return Judgement(np.ones(table.num_rows, bool), [])

    @OPERATORS.register_module("doubles_rows_mapper")
    class _Doubles(ArrowMapper, Mapper):
        def process_table(self, table):
            return pa.concat_tables([table, table])

    @OPERATORS.register_module("loses_rows_mapper")
    class _Loses(ArrowMapper, Mapper):
        def process_table(self, table):
            return table.slice(1)

    @OPERATORS.register_module("forgets_a_verdict_filter")
    class _Forgets(ArrowFilter, Pipeline):
        def judge(self, table):
            return Judgement(np.ones(table.num_rows - 1, bool), [])

    @OPERATORS.register_module("reverses_rows_mapper")
    class _Reverses(ArrowMapper, Mapper):
        def process_table(self, table):
            return table.take(np.arange(table.num_rows)[::-1])
