"""Variants of sums are sums with the right answer."""

import numpy as np
import pytest

from recipes.arithmetic import worked_solution
from recipes.arithmetic_variants import other_numbers
from rft_data.core.errors import RowError
from rft_data.tasks.sources import make_task, reasoning_gym_tasks


def test_variants_of_real_chain_sums_have_the_answer_that_working_them_out_gives():
    tasks = reasoning_gym_tasks(
        "chain_sum",
        size=40,
        seed=1,
        args={"min_terms": 3, "max_terms": 5, "min_digits": 1, "max_digits": 2},
        taskset="sums",
        difficulty=3.0,
        heldout=0.0,
    )
    rng = np.random.default_rng(0)
    for task in tasks:
        variants = other_numbers(task, [], rng, count=3)
        assert len(variants) == 3
        for variant in variants:
            assert worked_solution(variant).endswith(f"#### {variant.answer}")
            assert (variant.taskset, variant.difficulty) == ("sums", 3.0)
    assert any(variant.task_id != tasks[0].task_id for variant in other_numbers(tasks[0], [], rng))


def test_a_prompt_without_a_sum_is_named():
    with pytest.raises(RowError, match="there is no sum"):
        other_numbers(make_task("t", "Why?", "x", None, 0.0), [], np.random.default_rng(0))
