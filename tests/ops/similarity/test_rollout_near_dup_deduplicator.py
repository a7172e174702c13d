"""rollout_near_dup_deduplicator against comparing all pairs, on random texts and GSM8K's real solutions."""

import re
from collections import defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.runtime.pipeline import OperatorPipeline
from ops.similarity import fingerprints
from rft_data.buffer import Buffer
from rft_data.buffer.care import verify
from rft_data.core.errors import OperatorError, RecipeError
from tests.ops.real_rollouts import gsm8k_rollouts, stored
from tests.rft_data.conftest import make_experience

NAME = "rollout_near_dup_deduplicator"
text = st.lists(st.sampled_from("abcd"), max_size=8).map(" ".join)
reward = st.none() | st.sampled_from([0.0, 0.5, 1.0])
rows = st.lists(st.tuples(st.integers(0, 3), reward, text), min_size=1, max_size=24)


@cache
def grams(text, n):
    words = text.lower().split()
    return {tuple(words[i : i + n]) for i in range(max(len(words) - n + 1, 1))} if words else set()


@cache
def jaccard(one, other, n):
    one, other = grams(one, n), grams(other, n)
    return len(one & other) / len(one | other) if one | other else 0.0


def greedy(groups, rewards, texts, n, threshold, keep):
    """Kept rows, by the rule as it is written."""
    members = defaultdict(list)
    for row, group in enumerate(groups):
        members[group].append(row)
    kept = set()
    for mine in members.values():
        if keep == "best":
            mine = sorted(
                mine, key=lambda row: -np.inf if rewards[row] is None else rewards[row], reverse=True
            )
        alive = []
        for row in mine:
            if all(jaccard(texts[row], texts[other], n) < threshold for other in alive):
                alive.append(row)
        kept.update(alive)
    return kept


@pytest.mark.slow
@given(
    rows=rows,
    n=st.integers(1, 3),
    threshold=st.sampled_from([0.3, 0.5, 1.0]),
    keep=st.sampled_from(["first", "best"]),
)
@settings(deadline=None, max_examples=200)
def test_groups_are_thinned_out_exactly(operator, rows, n, threshold, keep):
    groups, rewards, texts = zip(*rows, strict=True)
    table = pa.table(
        {
            "group_id": [f"g{group}" for group in groups],
            "reward": pa.array(rewards, pa.float32()),
            "completion_text": list(texts),
        }
    )
    judgement = operator(NAME, n=n, threshold=threshold, keep=keep).judge(table)
    wanted = greedy(groups, rewards, texts, n, threshold, keep)
    assert set(np.flatnonzero(judgement.keep).tolist()) == wanted
    assert len(judgement.reasons) == len(rows) - len(wanted)


def near_copies(rollouts, share, seed=0):
    """Copies of some rollouts in their groups, one word in the middle another one; and their ids."""
    rng = np.random.default_rng(seed)
    copies = []
    for row in rollouts:
        words = row.completion_text.split(" ")
        if rng.random() < share and len(words) >= 40:
            words[len(words) // 2] = "twelve"
            copies.append(
                replace(
                    row,
                    experience_id=f"{row.experience_id}-copy",
                    member=row.member + 2,
                    completion_text=" ".join(words),
                )
            )
    return copies


@pytest.mark.slow
def test_copies_among_real_solutions_are_found_and_the_others_are_not():
    originals = gsm8k_rollouts(400)
    copies = near_copies(originals, 0.3)
    assert len(copies) >= 2
    rows = [*originals, *copies]
    rows = [rows[place] for place in np.random.default_rng(1).permutation(len(rows))]
    pipeline = OperatorPipeline([{NAME: {"n": 3, "threshold": 0.8}}], name="experience_ops")
    made = pipeline.run(stored(rows))
    dropped = [row for row, kept in zip(rows, made["verdict"].to_pylist(), strict=True) if kept == "dropped"]
    ordered = sorted(rows, key=lambda row: row.member)
    said = [row.completion_text for row in ordered]
    wanted = greedy([row.group_id for row in ordered], None, said, 3, 0.8, "first")
    assert {row.experience_id for row in dropped} == {
        row.experience_id for number, row in enumerate(ordered) if number not in wanted
    }
    assert len(dropped) >= 0.95 * len(copies)
    form = r"repeats member (\d) of its group \(similarity ([01]\.\d\d)\)"
    reasons = [re.fullmatch(form, why).groups() for why in made["reason"].to_pylist() if why]
    assert len(reasons) == len(dropped)
    assert min(float(similarity) for _, similarity in reasons) >= 0.8
    assert {member for member, _ in reasons} == {"0", "1"}


@pytest.mark.slow
@pytest.mark.parametrize("across_tasks", [False, True])
def test_batch_scope_agrees_with_the_exact_rule_where_it_is_clear(operator, across_tasks):
    originals = gsm8k_rollouts(80)
    rows = [*originals, *near_copies(originals, 0.3)]
    table = stored(rows)
    op = operator(NAME, n=3, threshold=0.7, scope="batch", across_tasks=across_tasks)
    keep = op.judge(table).keep
    texts = [row.completion_text for row in rows]
    labels = ["" if across_tasks else row.task_id for row in rows]
    for row in range(len(rows)):
        before = [j for j in range(row) if labels[j] == labels[row]]
        highest = max((jaccard(texts[row], texts[j], 3) for j in before), default=0.0)
        if highest < 0.5:
            assert keep[row]
        elif highest > 0.9:
            assert not keep[row]


def test_best_of_a_batch_stays(operator):
    table = pa.table(
        {
            "completion_text": ["a b c d e f", "a b c d e f", "a b c d e f", "other words here they are"],
            "taskset": ["s"] * 4,
            "task_id": ["t", "t", "u", "t"],
            "reward": pa.array([0.0, 1.0, 0.5, None]),
        }
    )
    judgement = operator(NAME, scope="batch", keep="best").judge(table)
    assert judgement.keep.tolist() == [False, True, True, True]
    assert judgement.reasons == ["repeats row of the batch 1 (similarity 1.00)"]
    across = operator(NAME, scope="batch", keep="best", across_tasks=True).judge(table)
    assert across.keep.tolist() == [False, True, False, True]


def test_turns_of_a_rollout_stand_and_fall_together(operator):
    turns = ["look it up please now", "the answer is seven today"]
    texts = [*turns, turns[0], "i do not know it", *turns]
    table = pa.table(
        {
            "group_id": ["g"] * 6,
            "member": [0, 0, 1, 1, 2, 2],
            "turn": [0, 1] * 3,
            "completion_text": texts,
            "taskset": ["s"] * 6,
            "task_id": ["t"] * 6,
        }
    )
    for scope in ("group", "batch"):
        judgement = operator(NAME, scope=scope, n=3).judge(table)
        assert judgement.keep.tolist() == [True] * 4 + [False] * 2


def test_rows_without_words_and_groups_of_one_stay(operator):
    table = pa.table(
        {
            "group_id": ["g", "g", "h"],
            "completion_text": ["", "  ", "a b"],
            "taskset": ["s"] * 3,
            "task_id": ["t"] * 3,
        }
    )
    for scope in ("group", "batch"):
        assert operator(NAME, scope=scope).judge(table).keep.all()
        assert operator(NAME, scope=scope).judge(table.slice(0, 0)).keep.tolist() == []


def test_tokens_are_compared_after_the_prompt(operator):
    ids = [[1, 1, 5, 6, 7], [1, 1, 5, 6, 7], [1, 1, 8, 9, 3]]
    table = pa.table(
        {
            "group_id": ["g"] * 3,
            "token_ids": pa.array(ids, pa.list_(pa.int32())),
            "prompt_length": [2, 2, 2],
        }
    )
    op = operator(NAME, n=2, column="token_ids", threshold=0.5)
    assert op.judge(table).keep.tolist() == [True, False, True]


# --- against the store ---------------------------------------------------------------------------------


def rollouts(count, seed=0):
    """Rollouts of few tasks; about every third nearly repeats an earlier one."""
    rng = np.random.default_rng(seed)
    texts: list[tuple[int, list[str]]] = []
    for _ in range(count):
        if texts and rng.random() < 0.35:
            task, said = texts[rng.integers(len(texts))]
            said = list(said)
            said[rng.integers(len(said))] = f"w{rng.integers(400)}"
        else:
            task, said = int(rng.integers(5)), [f"w{word}" for word in rng.integers(0, 400, 60)]
        texts.append((task, said))
    return [(task, " ".join(said)) for task, said in texts]


def incoming(rows, first=0, source="rollout"):
    """These rollouts as rows to append."""
    return [
        make_experience(
            first + place,
            group_id=f"g{first + place}",
            task_id=f"t{task}",
            completion_text=text,
            source=source,
        )
        for place, (task, text) in enumerate(rows)
    ]


@pytest.fixture
def buffer(tmp_path):
    with Buffer(tmp_path / "buffer") as opened:
        yield opened


class Watched:
    """A store that counts the rows read from it."""

    def __init__(self, store):
        self._store = store
        self.rows = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def read(self, *args, **kwargs):
        found = self._store.read(*args, **kwargs)
        self.rows += found.num_rows
        return found


def attached(operator, store, **args):
    op = operator(NAME, scope="store", n=3, threshold=0.7, **args)
    op.attach(store)
    return op


def first_come(rows, across_tasks):
    """Kept rows by the exact rule in the order stored."""
    groups = [0 if across_tasks else task for task, _ in rows]
    return greedy(groups, None, [text for _, text in rows], 3, 0.7, "first")


@pytest.mark.slow
@pytest.mark.parametrize("across_tasks", [False, True])
def test_store_keeps_what_came_first_whatever_the_batches(operator, buffer, across_tasks):
    rows = rollouts(300)
    buffer.append(incoming(rows))
    stored_rows = buffer.take(range(300))
    whole = attached(operator, buffer, across_tasks=across_tasks).judge(stored_rows)
    # MinHash against the exact rule: only what is near the threshold may differ
    assert len(set(np.flatnonzero(whole.keep).tolist()) ^ first_come(rows, across_tasks)) <= 3
    assert 60 <= (~whole.keep).sum() <= 160
    parts = attached(operator, buffer, across_tasks=across_tasks)
    order = np.random.default_rng(0).permutation(300)
    keep = np.zeros(300, bool)
    for start in range(0, 300, 41):
        mine = order[start : start + 41]
        keep[mine] = parts.judge(stored_rows.take(mine)).keep
    assert keep.tolist() == whole.keep.tolist()


@pytest.mark.slow
def test_later_rows_never_change_an_earlier_verdict(operator, buffer):
    rows = rollouts(80)
    buffer.append(incoming(rows[:50]))
    before = attached(operator, buffer).judge(buffer.take(range(50)))
    buffer.append(incoming(rows[50:], first=50))
    after = attached(operator, buffer).judge(buffer.take(range(80)))
    assert after.keep[:50].tolist() == before.keep.tolist()
    reason = next(iter(after.reasons))
    assert reason.startswith("repeats row ")


@pytest.mark.slow
def test_a_restart_reads_only_what_was_not_kept_beside_the_buffer(
    operator, buffer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fingerprints, "FLUSH_ROWS", 100)
    monkeypatch.setattr(fingerprints, "_READ_ROWS", 64)
    rows = rollouts(210)
    buffer.append(incoming(rows))
    stored_rows = buffer.take(range(210))
    first = attached(operator, buffer).judge(stored_rows)
    watched = Watched(buffer)
    again = attached(operator, watched).judge(stored_rows)
    assert again.keep.tolist() == first.keep.tolist()
    assert again.reasons == first.reasons
    assert watched.rows == 210 - 128  # read 64 at a time, kept after 128
    other = Watched(buffer)
    attached(operator, other, across_tasks=True).judge(stored_rows)
    assert other.rows == 210


@pytest.mark.slow
def test_what_was_judged_is_kept_beside_the_buffer_from_the_first_full_portion_on(
    operator, buffer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fingerprints, "FLUSH_ROWS", 10)
    buffer.append(incoming(rollouts(10)))
    for judged, read_again in ((9, 9), (10, 0)):
        attached(operator, buffer).judge(buffer.take(range(judged)))
        watched = Watched(buffer)
        attached(operator, watched).judge(buffer.take(range(judged)))
        assert watched.rows == read_again


@pytest.mark.slow
def test_a_buffer_with_fingerprints_beside_it_is_in_order(operator, buffer, monkeypatch):
    monkeypatch.setattr(fingerprints, "FLUSH_ROWS", 10)
    buffer.append(incoming(rollouts(40)))
    attached(operator, buffer).judge(buffer.take(range(40)))
    buffer.close()
    report = verify(buffer.root)
    # the name that 0.5.0 gave to these settings: what it stored is read on
    assert [name for name in report.rows if name.startswith("fingerprints_")] == ["fingerprints_f816f249b07b"]
    assert report.findings == ()


@pytest.mark.slow
def test_a_reader_decides_the_same_and_writes_nothing(operator, buffer, monkeypatch):
    monkeypatch.setattr(fingerprints, "FLUSH_ROWS", 10)
    buffer.append(incoming(rollouts(60)))
    before = sorted(path.name for path in buffer.root.iterdir())
    rows = buffer.take(range(60))
    op = operator(NAME, scope="store", n=3, threshold=0.7, buffer=str(buffer.root))
    read = op.judge(rows)
    assert sorted(path.name for path in buffer.root.iterdir()) == before
    assert attached(operator, buffer).judge(rows).keep.tolist() == read.keep.tolist()
    assert sorted(path.name for path in buffer.root.iterdir()) != before


@pytest.mark.slow
def test_evaluation_rows_are_neither_originals_nor_repeats(operator, buffer):
    rows = rollouts(1)
    buffer.append(incoming(rows, source="eval"))
    buffer.append(incoming(rows, first=1))
    buffer.append(incoming(rows, first=2, source="probe"))
    buffer.append(incoming(rows, first=3))
    judgement = attached(operator, buffer).judge(buffer.take(range(4)))
    assert judgement.keep.tolist() == [True, True, True, False]
    assert judgement.reasons == ["repeats row 1 (similarity 1.00)"]


@pytest.mark.slow
def test_a_pipeline_attaches_its_store(buffer):
    buffer.append(incoming(rollouts(40)))
    ops = [{NAME: {"scope": "store", "n": 3, "threshold": 0.7}}]
    made = OperatorPipeline(ops, name="experience_ops", store=buffer).run(buffer.take(range(40)))
    assert set(made["verdict"].to_pylist()) == {"kept", "dropped"}
    with pytest.raises(RecipeError, match="buffer"):
        OperatorPipeline(ops, name="experience_ops")
    OperatorPipeline([{NAME: {}}], name="experience_ops")


def test_a_row_that_is_not_stored_is_refused(operator, buffer):
    buffer.append(incoming(rollouts(3)))
    rows = buffer.take(range(3)).set_column(0, "seq", pa.array([0, 1, 7]))
    with pytest.raises(OperatorError, match="row 7 is not stored"):
        attached(operator, buffer).judge(rows)
    with pytest.raises(OperatorError, match="has no store"):
        operator(NAME, scope="store").judge(rows)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"threshold": 0}, "threshold is 0"),
        ({"n": 0}, "n 0"),
        ({"scope": "all"}, "scope is 'all'"),
        ({"scope": "store", "keep": "best"}, "cannot be with scope 'store'"),
        ({"across_tasks": True}, "a group has one task"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(operator, args, message):
    with pytest.raises(ValueError, match=message):
        operator(NAME, **args)
