"""semantic_diversity_filter against plain loops over cosines, and with a sentence-transformers model."""

import hashlib
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.core.errors import OperatorError
from rft_data.reading.search import embed, similar
from tests.ops.real_rollouts import gsm8k_rollouts, gsm8k_tasks, stored
from tests.rft_data.conftest import make_experience
from tests.rft_data.reading.test_search import tiny_sentence_model

NAME = "semantic_diversity_filter"
TOY = f"{__name__}:toy"
CALLS: list[int] = []


def toy(texts):
    """Sixteen numbers a text: its words' hashes summed, so that texts which share words are near."""
    CALLS.append(len(texts))
    made = np.zeros((len(texts), 16), np.float32)
    for place, text in enumerate(texts):
        for word in text.split():
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
            made[place] += np.random.default_rng(seed).normal(size=16)
    return made


def cosines(texts):
    vectors = toy(list(texts)).astype(np.float64)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.where(length == 0, 1, length)
    return vectors @ vectors.T


def by_group(groups):
    members = defaultdict(list)
    for row, group in enumerate(groups):
        members[group].append(row)
    return members.values()


def unlike(groups, texts, limit):
    """The greedy rule as it is written."""
    near, kept = cosines(texts), set()
    for mine in by_group(groups):
        alive = []
        for row in mine:
            if all(near[row, other] < limit - 1e-6 for other in alive):
                alive.append(row)
        kept.update(alive)
    return kept


def spread(groups, texts, count):
    """Greedy k-centre as it is written; ties to the earlier row."""
    near, kept = cosines(texts), set()
    for mine in by_group(groups):
        chosen = [mine[0]]
        while len(chosen) < min(count, len(mine)):
            rest = [row for row in mine if row not in chosen]
            chosen.append(
                min(rest, key=lambda row: (round(max(near[row, other] for other in chosen), 5), row))
            )
        kept.update(chosen)
    return kept


text = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=5).map(" ".join)
rows = st.lists(st.tuples(st.integers(0, 3), text), min_size=1, max_size=20)


def table_of(groups, texts):
    return pa.table({"group_id": [f"g{group}" for group in groups], "completion_text": list(texts)})


@pytest.mark.slow
@given(rows=rows)
@settings(deadline=None, max_examples=60)
def test_similar_rollouts_of_a_group_go(operator, rows):
    groups, texts = zip(*rows, strict=True)
    judgement = operator(NAME, model=TOY, max_similarity=0.9).judge(table_of(groups, texts))
    assert set(np.flatnonzero(judgement.keep).tolist()) == unlike(groups, texts, 0.9)


apart = st.lists(st.tuples(st.integers(0, 3), text), max_size=20, min_size=1, unique_by=lambda row: row[1])
"""No text twice: of equal ones either may stay."""


@pytest.mark.slow
@given(rows=apart, count=st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_the_farthest_apart_stay(operator, rows, count):
    groups, texts = zip(*rows, strict=True)
    judgement = operator(NAME, model=TOY, keep_n=count).judge(table_of(groups, texts))
    assert set(np.flatnonzero(judgement.keep).tolist()) == spread(groups, texts, count)


@pytest.mark.slow
@given(rows=rows, count=st.integers(1, 4))
@settings(deadline=None, max_examples=30)
def test_as_many_stay_of_each_group_as_are_asked_for(operator, rows, count):
    groups, texts = zip(*rows, strict=True)
    judgement = operator(NAME, model=TOY, keep_n=count).judge(table_of(groups, texts))
    kept = [groups[row] for row in np.flatnonzero(judgement.keep)]
    assert all(kept.count(group) == min(count, groups.count(group)) for group in groups)


def test_the_best_reward_goes_first(operator):
    table = table_of([0, 0, 0], ["a b", "a b", "c"]).append_column("reward", pa.array([None, 1.0, 0.0]))
    judgement = operator(NAME, model=TOY, max_similarity=0.95, keep="best").judge(table)
    assert judgement.keep.tolist() == [False, True, True]
    assert judgement.reasons == ["means what member 1 of its group means (cosine 1.000)"]


def test_turns_are_averaged(operator):
    table = pa.table(
        {
            "group_id": ["g"] * 4,
            "member": [0, 0, 1, 1],
            "turn": [0, 1, 0, 1],
            "completion_text": ["a b", "c d", "c d", "a b"],
        }
    )
    assert operator(NAME, model=TOY, max_similarity=0.99).judge(table).keep.tolist() == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.slow
def test_real_solutions_with_a_copy_each(operator):
    rows = gsm8k_rollouts(150)
    texts = [row.completion_text for row in rows]
    groups = [row.group_id for row in rows]
    doubled = pa.concat_tables([stored(rows), stored(rows)])
    op = operator(NAME, model=TOY, max_similarity=0.98)
    judgement = op.judge(doubled.drop_columns(["member", "turn"]))
    assert set(np.flatnonzero(judgement.keep).tolist()) == unlike(groups * 2, texts * 2, 0.98)
    assert not judgement.keep[len(rows) :].any()


def test_data_juicers_own_front_door_judges_the_same(operator):
    from datasets import Dataset

    table = table_of([0, 1, 0, 0], ["a b", "a b", "a b", "c d"])
    op = operator(NAME, model=TOY, max_similarity=0.9)
    kept = op.run(Dataset(table))
    assert kept.to_dict() == table.filter(op.judge(table).keep).to_pydict()
    assert kept.num_rows == 3


# --- against the store ---------------------------------------------------------------------------------


@pytest.fixture
def buffer(tmp_path):
    with Buffer(tmp_path / "buffer") as opened:
        yield opened


def attached(operator, store, **args):
    op = operator(NAME, model=TOY, scope="store", max_similarity=0.9, **args)
    op.attach(store)
    return op


@pytest.mark.slow
@pytest.mark.parametrize("across_tasks", [False, True])
def test_earlier_rows_of_the_store_count_and_later_ones_do_not(operator, buffer, across_tasks):
    rows = gsm8k_rollouts(120)
    count, third = len(rows), len(rows) // 3
    buffer.add_tasks(gsm8k_tasks(120))
    buffer.append(rows)
    near = cosines([row.completion_text for row in rows])
    wanted = []
    for seq, row in enumerate(rows):
        before = [j for j in range(seq) if across_tasks or rows[j].task_id == row.task_id]
        wanted.append(all(near[seq, j] < 0.9 for j in before))
    op = attached(operator, buffer, across_tasks=across_tasks)
    parts = [range(third, 2 * third), range(third), range(2 * third, count)]
    keep = {}
    for part in parts:
        table = buffer.take(part).drop_columns(["member", "turn"])
        keep.update(zip(part, op.judge(table).keep.tolist(), strict=True))
    assert [keep[seq] for seq in range(count)] == wanted
    assert 0 < wanted.count(False) < count


@pytest.mark.slow
def test_vectors_are_shared_with_search_and_made_once(operator, buffer):
    rows = gsm8k_rollouts(20)
    buffer.append(rows)
    made = embed(buffer, toy, name=TOY)
    assert made.new == 40
    op = attached(operator, buffer)
    op.judge(buffer.take(range(40)))
    CALLS.clear()
    op.judge(buffer.take(range(40)))
    assert CALLS == []
    assert similar(buffer, 3, 2, model=TOY)


def test_a_reader_compares_the_batch_and_stores_nothing(operator, buffer):
    texts = ["a b c", "d e", "a b c"]
    buffer.append([make_experience(n, completion_text=text) for n, text in enumerate(texts)])
    before = sorted(path.name for path in buffer.root.iterdir())
    op = operator(NAME, model=TOY, scope="store", max_similarity=0.97, buffer=str(buffer.root))
    judgement = op.judge(buffer.take(range(3)))
    assert judgement.keep.tolist() == [True, True, False]
    assert judgement.reasons == ["means what row 0 means (cosine 1.000)"]
    assert sorted(path.name for path in buffer.root.iterdir()) == before


def test_a_store_without_vectors_is_refused(operator, experiences):
    op = attached(operator, object())
    with pytest.raises(OperatorError, match="needs the buffer itself, got a object"):
        op.judge(experiences(["g"], [1.0]))


@pytest.mark.slow
def test_a_sentence_transformers_model_thins_out_real_solutions(tmp_path):
    model = tiny_sentence_model(tmp_path / "model")
    rows = gsm8k_rollouts(20)
    twins = stored([*rows, *rows])
    member = twins.column_names.index("member")
    twins = twins.set_column(member, twins.schema.field(member), pa.array(list(range(80))))
    ops = [{NAME: {"model": str(model), "max_similarity": 0.99999}}]
    made = OperatorPipeline(ops, name="experience_ops").run(twins)
    verdicts = made["verdict"].to_pylist()
    assert verdicts[40:] == ["dropped"] * 40
    assert verdicts[:40].count("kept") >= 30


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "exactly one of the two"),
        ({"max_similarity": 0.9, "keep_n": 2}, "exactly one of the two"),
        ({"max_similarity": 0.0}, r"wanted \(0, 1\]"),
        ({"keep_n": 0}, "at least 1"),
        ({"max_similarity": 0.9, "scope": "batch"}, "scope is 'batch'"),
        ({"keep_n": 2, "scope": "store"}, "max_similarity only"),
        ({"keep_n": 2, "across_tasks": True}, "a group has one task"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(operator, args, message):
    with pytest.raises(ValueError, match=message):
        operator(NAME, model=TOY, **args)
