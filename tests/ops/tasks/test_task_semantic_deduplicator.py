"""Semantic deduplication with a small sentence-transformers model made from a seed."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ops.tasks.task_semantic_deduplicator import _twins
from rft_data.core.errors import RecipeError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bag of words over WORDS: prompts of the same words, in any order, mean the same."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import BoW, Normalize

    folder = tmp_path_factory.mktemp("model") / "words"
    SentenceTransformer(modules=[BoW(vocab=WORDS), Normalize()]).save(str(folder))
    return str(folder)


WORDS = ["apples", "pears", "tom", "anna", "buys", "sells", "many", "few", "red", "green"]


def tasks(*rows: tuple[str, str]) -> pa.Table:
    return pa.table(
        {
            "taskset": ["set"] * len(rows),
            "task_id": [f"t{n}" for n in range(len(rows))],
            "text": pa.array([text for _, text in rows], pa.string()),
            "split": pa.array([split for split, _ in rows], pa.string()),
        }
    )


@pytest.mark.slow
def test_prompts_that_mean_the_same_go_and_held_out_ones_stay(operator, model):
    table = tasks(
        ("train", "tom buys apples"),
        ("train", "anna sells pears"),
        ("train", "apples tom buys"),
        ("heldout", "sells pears anna"),
        ("heldout", "pears sells anna"),
        ("train", "tom buys many red apples"),
    )
    judgement = operator("task_semantic_deduplicator", model=model, threshold=0.95).judge(table)
    assert judgement.keep.tolist() == [True, False, False, True, True, True]
    assert list(judgement.reasons) == [
        "means the same as task set/t3 (cosine 1.000)",
        "means the same as task set/t0 (cosine 1.000)",
    ]
    loose = operator("task_semantic_deduplicator", model=model, threshold=0.7).judge(table)
    assert loose.keep.tolist() == [True, False, False, True, True, False]


def test_no_task_is_no_error(operator, model):
    assert len(operator("task_semantic_deduplicator", model=model).judge(tasks()).keep) == 0


def test_a_threshold_out_of_bounds_and_a_missing_model_are_refused(operator, tmp_path: Path):
    with pytest.raises(ValueError, match="above 0, at most 1"):
        operator("task_semantic_deduplicator", model="x", threshold=0.0)
    with pytest.raises(RecipeError, match="no sentence-transformers model"):
        operator("task_semantic_deduplicator", model=str(tmp_path / "none")).judge(tasks(("train", "a")))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "protected"), [(1, 0), (7, 3), (1500, 0), (1500, 1200), (2100, 40)])
def test_twins_are_those_of_a_greedy_loop(count, protected):
    rng = np.random.default_rng(count + protected)
    vectors = rng.normal(size=(count, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    twin, _ = _twins(vectors, protected, 0.999)
    kept = []
    near = vectors @ vectors.T >= 0.999 - 1e-6
    for row in range(count):
        is_twin = row >= protected and near[row, kept].any()
        assert (twin[row] >= 0) == is_twin, row
        if is_twin:
            assert twin[row] in kept
            assert near[row, twin[row]]
        else:
            kept.append(row)
