"""OperatorPipeline: annotations, conservation, quarantine, task verdicts."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.base import ArrowMapper
from ops.runtime.hygiene import registry
from ops.runtime.limits import Limits
from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer.verdicts import Verdicts as BufferVerdicts
from rft_data.core import schema
from rft_data.core.errors import (
    ConflictError,
    DiskFullError,
    FencedError,
    IntegrityError,
    MissingFileError,
    OperatorError,
    RowError,
    StalledError,
    Stopped,
)

GRPO = [
    {"reward_range_filter": {"min_reward": 0}},
    {"reward_variance_filter": None},
    {"grpo_advantage_mapper": {}},
]


def pipeline(operators, *, text_column="completion_text", **limits):
    return OperatorPipeline(
        operators, name="experience_ops", allow_unsafe=True, text_column=text_column, limits=limits
    )


@pytest.fixture
def fails_with():
    """(error) -> an operator `fails_as_told_mapper` that raises it, and counts its calls."""
    registry()
    from data_juicer.ops.base_op import OPERATORS, Mapper

    def register(error):
        class Fails(ArrowMapper, Mapper):
            calls = 0

            def process_table(self, table):
                Fails.calls += 1
                raise error

        OPERATORS.modules["fails_as_told_mapper"] = Fails
        return Fails

    yield register
    OPERATORS.modules.pop("fails_as_told_mapper", None)


@pytest.mark.slow
def test_every_row_gets_one_annotation_in_input_order(experiences):
    table = experiences(["g", "h", "g", "h", "g"], [1.0, 1.0, 0.0, 1.0, None])
    out = pipeline(GRPO).run(table)
    assert out.schema == schema.ANNOTATIONS
    out.validate(full=True)
    assert out["seq"].to_pylist() == table["seq"].to_pylist()
    assert out["verdict"].to_pylist() == ["kept", "dropped", "kept", "dropped", "dropped"]
    assert out["dropped_by"].to_pylist() == [
        "", "reward_variance_filter", "", "reward_variance_filter", "reward_range_filter",
    ]  # fmt: skip
    assert out["reason"].to_pylist()[4] == "no reward: grader timed out"
    advantage = 0.5 / (0.5**0.5 + 1e-4)
    assert out["advantage"].to_pylist()[0] == pytest.approx([advantage])
    assert out["advantage"].to_pylist()[2] == pytest.approx([-advantage])
    assert out["advantage"].null_count == 3
    assert set(out["stats"].to_pylist()) == {"{}"}


def test_no_rows_in_gives_no_rows_out(experiences):
    out = pipeline([*GRPO, {"document_deduplicator": {}}]).run(experiences(["g"], [1.0]).slice(0, 0))
    assert out.num_rows == 0
    assert out.schema == schema.ANNOTATIONS


def test_all_rows_dropped_is_not_an_error(experiences):
    out = pipeline(GRPO).run(experiences(["g", "g"], [-1.0, -2.0]))
    assert out["verdict"].to_pylist() == ["dropped", "dropped"]
    assert out["advantage"].null_count == 2


def test_no_operators_keep_everything(experiences):
    out = pipeline([]).run(experiences(["g"], [None]))
    assert out["verdict"].to_pylist() == ["kept"]


def test_shuffled_rows_get_the_annotations_of_sorted_ones(experiences):
    rng = np.random.default_rng(0)
    groups = [f"g{i // 8}" for i in range(512)]
    table = experiences(groups, rng.choice([0.0, 1.0], 512, p=[0.8, 0.2]).tolist())
    order = rng.permutation(512)
    columns = ["seq", "verdict", "dropped_by", "reason", "advantage"]
    straight = pipeline(GRPO).run(table).select(columns)
    chunks = pa.concat_tables([table.take(order[:100]), table.take(order[100:])])
    shuffled = pipeline(GRPO).run(chunks).select(columns)
    assert shuffled.equals(straight.take(order).combine_chunks())
    assert 0 < straight["verdict"].to_pylist().count("kept") < 512


STACKS = st.lists(
    st.sampled_from(
        [
            {"reward_range_filter": {"min_reward": 0.0, "max_reward": 1.0}},
            {"reward_variance_filter": {}},
            {"grpo_advantage_mapper": {}},
            {"text_length_filter": {"min_len": 3}},
            {"document_deduplicator": {}},
            {"whitespace_normalization_mapper": {}},
            {"topk_specified_field_selector": {"field_key": "reward", "topk": 5}},
            {"specified_numeric_field_filter": {"field_key": "reward", "min_value": 0.5}},
            {"fails_on_bad_text_mapper": {}},
            {"fails_on_bad_group_filter": {}},
            {"reverses_rows_mapper": {}},
        ]
    ),
    max_size=5,
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        st.sampled_from(["bad", "ok", "long enough", " long  enough "]),
    ),
    max_size=24,
)


@pytest.mark.slow
@given(stack=STACKS, rows=ROWS)
@settings(deadline=None, max_examples=120)
def test_rows_in_are_kept_dropped_or_quarantined(experiences, stack, rows):
    groups, rewards, texts = ([row[i] for row in rows] for i in range(3))
    run = pipeline(stack)
    table = experiences(groups, rewards, texts) if rows else experiences(["a"], [1.0]).slice(0, 0)
    out = run.run(table)
    assert out["seq"].to_pylist() == table["seq"].to_pylist()
    metrics = run.metrics()
    verdicts = out["verdict"].to_pylist()
    assert set(verdicts) <= {"kept", "dropped", "quarantined"}
    quarantined = sum(value for key, value in metrics.items() if key.endswith("/quarantined"))
    assert verdicts.count("quarantined") == quarantined
    for verdict, by, reason in zip(
        verdicts, out["dropped_by"].to_pylist(), out["reason"].to_pylist(), strict=True
    ):
        assert (verdict == "kept") == (by == "") == (reason == "")
    if stack:
        names = list(dict.fromkeys(key.rsplit("/", 1)[0] for key in metrics))
        assert metrics[f"{names[0]}/rows_in"] == len(rows)
        assert metrics[f"{names[-1]}/rows_out"] == verdicts.count("kept")


def test_failing_row_is_quarantined_and_the_others_go_on(experiences):
    texts = ["fine"] * 37
    texts[11] = texts[30] = "bad"
    out = pipeline([{"fails_on_bad_text_mapper": {}}]).run(experiences(["g"] * 37, [1.0] * 37, texts))
    bad = [i for i, verdict in enumerate(out["verdict"].to_pylist()) if verdict == "quarantined"]
    assert bad == [11, 30]
    assert out["reason"][11].as_py() == "fails_on_bad_text_mapper: KeyError: 'a bad text'"
    assert out["dropped_by"][11].as_py() == "fails_on_bad_text_mapper"
    assert json.loads(out["stats"][0].as_py()) == {"length": 4}
    assert out["stats"][11].as_py() == "{}"


def test_failing_group_is_quarantined_whole(experiences):
    groups = ["g", "h", "i"] * 3
    texts = ["fine"] * 8 + ["bad"]
    out = pipeline([{"fails_on_bad_group_filter": {}}]).run(experiences(groups, [1.0] * 9, texts))
    assert [v == "quarantined" for v in out["verdict"].to_pylist()] == [g == "i" for g in groups]
    assert out["reason"][8].as_py() == "fails_on_bad_group_filter: ZeroDivisionError: a bad group"


def test_group_with_a_reward_that_is_not_finite_is_quarantined_alone(experiences):
    table = experiences(["g", "g", "h", "h"], [0.0, 1.0, float("nan"), 1.0])
    out = pipeline([{"grpo_advantage_mapper": {}}]).run(table)
    assert out["verdict"].to_pylist() == ["kept", "kept", "quarantined", "quarantined"]


def test_group_passes_on_ragged_when_a_row_filter_dropped_a_member(experiences):
    table = experiences(["g"] * 4, [0.0, 1.0, None, 1.0])
    out = pipeline([{"reward_range_filter": {}}, {"grpo_advantage_mapper": {"scale": "none"}}]).run(table)
    third = 1 / 3
    assert [a and a[0] for a in out["advantage"].to_pylist()] == pytest.approx(
        [-2 * third, third, None, third]
    )


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("doubles_rows_mapper", "turned 3 rows into 6"),
        ("loses_rows_mapper", "turned 3 rows into 2"),
        ("forgets_a_verdict_filter", "judged 2 rows"),
    ],
)
def test_operator_that_breaks_conservation_stops_the_run(experiences, broken, message):
    with pytest.raises(OperatorError, match=f"'{broken}' {message}"):
        pipeline([{broken: {}}]).run(experiences(["g"] * 3, [1.0] * 3))


def test_operator_that_reorders_rows_does_not_mix_up_annotations(experiences):
    table = experiences(["g"] * 4, [0.0, 1.0, 1.0, 1.0])
    plain = pipeline([{"grpo_advantage_mapper": {}}]).run(table)
    reversed_ = pipeline([{"reverses_rows_mapper": {}}, {"grpo_advantage_mapper": {}}]).run(table)
    assert reversed_["advantage"].equals(plain["advantage"])


def test_missing_column_names_the_operator_and_the_column(experiences):
    table = experiences(["g"], [1.0])
    with pytest.raises(OperatorError, match="'reward_variance_filter' needs column 'reward'"):
        pipeline([{"reward_variance_filter": {}}]).run(table.drop_columns(["reward"]))
    with pytest.raises(OperatorError, match="needs column 'completion_text'"):
        pipeline([{"text_length_filter": {}}]).run(table.drop_columns(["completion_text"]))
    with pytest.raises(OperatorError, match="needs column 'seq'"):
        pipeline([]).run(table.drop_columns(["seq"]))


def test_shaped_reward_and_added_columns_reach_the_annotation(experiences):
    table = experiences(["g", "g"], [0.0, 1.0], ["short", "a longer text"])
    shaped = table.append_column("shaped_reward", pa.array([0.25, 0.75], pa.float32()))
    out = pipeline(
        [{"text_length_filter": {"min_len": 1}}, {"grpo_advantage_mapper": {"scale": "none"}}]
    ).run(shaped)
    assert out["shaped_reward"].to_pylist() == [0.25, 0.75]
    assert out["advantage"].to_pylist() == [[-0.25], [0.25]]
    assert [json.loads(s) for s in out["stats"].to_pylist()] == [{"text_len": 5}, {"text_len": 13}]


def test_pipeline_hash_depends_on_names_order_and_arguments_only():
    same = pipeline(GRPO)
    assert same.pipeline_hash == OperatorPipeline(GRPO, name="other").pipeline_hash
    assert same.pipeline_hash == pipeline([*GRPO[:1], {"reward_variance_filter": {}}, GRPO[2]]).pipeline_hash
    others = [GRPO[:2], GRPO[::-1], [{"reward_range_filter": {"min_reward": 1}}, *GRPO[1:]]]
    assert len({same.pipeline_hash, *(pipeline(other).pipeline_hash for other in others)}) == 4


def test_metrics_count_since_the_last_call_and_tell_repeated_operators_apart(experiences):
    run = pipeline([{"reward_range_filter": {"min_reward": 0}}, {"reward_range_filter": {"max_reward": 1}}])
    table = experiences(["g"] * 3, [-1.0, 0.5, 2.0])
    run.run(table)
    out = run.run(table)
    assert out["dropped_by"].to_pylist() == ["reward_range_filter", "", "reward_range_filter#2"]
    metrics = run.metrics()
    assert metrics.pop("reward_range_filter/seconds") > 0
    assert metrics["reward_range_filter/rows_in"] == 6
    assert metrics["reward_range_filter#2/rows_in"] == 4
    assert metrics["reward_range_filter#2/rows_out"] == 2
    assert run.metrics() == {}


def test_run_tasks_tells_what_was_dropped_and_keeps_order_and_columns():
    table = pa.table(
        {
            "text": ["What is 1 + 1?", "hi", "what is 1 + 1?", "How many legs have 3 cats?"],
            "tokens": pa.array([[1], [2], [3], [4]], pa.list_(pa.int32())),
        }
    )
    run = pipeline(
        [{"text_length_filter": {"min_len": 5}}, {"document_deduplicator": {"lowercase": True}}],
        text_column="text",
    )
    verdicts = run.run_tasks(table)
    assert verdicts.kept.tolist() == [0, 3]
    assert verdicts.table["tokens"].to_pylist() == [[1], [4]]
    length, duplicates = verdicts.reports
    assert (length.rows_in, length.rows_out, length.dropped) == (4, 3, {1: "text_len=2"})
    assert (duplicates.rows_in, duplicates.rows_out) == (3, 2)
    assert duplicates.dropped == {2: "duplicate of a row that is kept"}


def test_masked_has_a_column_of_its_own(experiences):
    table = experiences(["g", "g"], [0.0, 1.0])
    out = pipeline([{"reward_range_filter": {"min_reward": 0.5}}, {"truncation_mask_mapper": {}}]).run(table)
    assert out["stats"].to_pylist() == ["{}", "{}"]
    assert out["masked"].to_pylist() == [None, False]


def step_wise(rewards, texts):
    """One group of three rollouts with two turns each, rows not in order; and a rollout of one row."""
    return pa.table(
        {
            "seq": range(7),
            "experience_id": list("abcdefg"),
            "group_id": ["g"] * 6 + ["h"],
            "member": [0, 1, 2, 0, 1, 2, 0],
            "turn": [1, 1, 1, 0, 0, 0, 0],
            "reward": pa.array(rewards, pa.float32()),
            "completion_text": texts,
        }
    )


@pytest.mark.parametrize(
    ("judge", "verdict", "why"),
    [
        ({"repetition_filter": {"n": 1, "max_share": 0.5}}, "dropped", "0.75 of its 1-grams are repeats"),
        ({"text_length_filter": {"min_len": 1, "max_len": 10}}, "dropped", "text_len=19"),
        ({"fails_on_bad_text_mapper": {}}, "quarantined", "fails_on_bad_text_mapper: KeyError"),
    ],
)
def test_rollout_that_loses_a_turn_goes_whole(judge, verdict, why):
    bad = "bad" if verdict == "quarantined" else "loop loop loop loop"
    table = step_wise([1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0], [bad, *["fine"] * 5, bad])
    run = pipeline([judge, {"step_wise_advantage_mapper": {"scale": "none"}}])
    out = run.run(table)
    name = next(iter(judge))
    assert out["verdict"].to_pylist() == [verdict, "kept", "kept", "dropped", "kept", "kept", verdict]
    assert out["dropped_by"].to_pylist()[3] == name
    assert out["reason"].to_pylist()[3].startswith(f"another turn of its rollout was dropped: {why}")
    assert out["advantage"].to_pylist()[1:6] == [[0.25], [-0.25], None, [0.25], [-0.25]]
    metrics = run.metrics()
    assert metrics[f"{name}/rows_out"] == metrics["step_wise_advantage_mapper/rows_in"] == 4


def test_rows_of_one_turn_never_drag_others_along(experiences):
    table = experiences(["g"] * 4, [0.0, 1.0, 2.0, 1.0])
    table = table.set_column(table.schema.get_field_index("member"), "member", pa.array([0, 0, 0, 0]))
    out = pipeline([{"reward_range_filter": {"max_reward": 1}}]).run(table)
    assert out["verdict"].to_pylist() == ["kept", "kept", "dropped", "kept"]


@pytest.mark.parametrize("mapper", ["grpo_advantage_mapper", "rloo_advantage_mapper"])
def test_row_left_without_an_advantage_is_dropped_by_the_operator_that_left_it(experiences, mapper):
    run = pipeline([{"dynamic_sampling_filter": None}, {mapper: {}}, {"text_length_filter": {"min_len": 1}}])
    out = run.run(experiences(["g"] * 3, [0.0, 1.0, None]))
    assert out["verdict"].to_pylist() == ["kept", "kept", "dropped"]
    assert out["dropped_by"].to_pylist()[2] == mapper
    assert out["reason"].to_pylist()[2] == "no advantage: it has no reward"
    metrics = run.metrics()
    assert (metrics[f"{mapper}/rows_in"], metrics[f"{mapper}/rows_out"]) == (3, 2)
    verdicts = BufferVerdicts(run.pipeline_hash)
    verdicts.fold(out)
    kept = [
        seq
        for seq, said in zip(*(out[c].to_pylist() for c in ("seq", "verdict")), strict=True)
        if said == "kept"
    ]
    assert not len(verdicts.missing(np.array(kept)))


def test_group_that_an_advantage_operator_may_skip_is_dropped_with_its_failure(experiences):
    run = pipeline([{"grpo_advantage_mapper": {}}], grpo_advantage_mapper=Limits("keep"))
    out = run.run(experiences(["g", "g", "h", "h"], [0.0, 1.0, float("nan"), 1.0]))
    assert out["verdict"].to_pylist() == ["kept", "kept", "dropped", "dropped"]
    assert out["reason"].to_pylist()[2].startswith("no advantage: grpo_advantage_mapper: ValueError")
    assert run.metrics()["grpo_advantage_mapper/unjudged"] == 0


@pytest.mark.parametrize(
    "error",
    [MissingFileError, ConflictError, IntegrityError, DiskFullError, FencedError, StalledError, Stopped],
)
def test_failure_that_is_no_rows_fault_ends_the_run_at_once(experiences, fails_with, error):
    failing = fails_with(error("the store is away"))
    with pytest.raises(error, match="the store is away"):
        pipeline([{"fails_as_told_mapper": {}}]).run(experiences(["g"] * 8, [1.0] * 8))
    assert failing.calls == 1


@pytest.mark.parametrize("error", [RowError, ValueError])
def test_failure_of_rows_is_bisected_to_them(experiences, fails_with, error):
    failing = fails_with(error("a bad row"))
    out = pipeline([{"fails_as_told_mapper": {}}]).run(experiences(["g"] * 8, [1.0] * 8))
    assert set(out["reason"].to_pylist()) == {f"fails_as_told_mapper: {error.__name__}: a bad row"}
    assert failing.calls == 15


def test_second_export_to_one_table_stops_the_run(experiences, tmp_path):
    table = experiences(["g"] * 4, [1.0] * 4)
    export = [{"lancedb_write_mapper": {"uri": str(tmp_path / "out")}}]
    pipeline(export).run(table)
    with pytest.raises(ConflictError, match="already"):
        pipeline(export).run(table)


def test_feedback_from_a_buffer_that_is_not_there_stops_the_run(experiences, tmp_path):
    with pytest.raises(MissingFileError, match="no buffer at"):
        pipeline([{"feedback_mapper": {"buffer": str(tmp_path / "none")}}]).run(experiences(["g"], [1.0]))


@pytest.mark.slow
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("gh"), st.integers(0, 2), st.integers(0, 2), st.sampled_from([-1.0, 0.5])),
        unique_by=lambda row: row[:3],
        min_size=1,
    ),
    chunks=st.integers(1, 3),
)
@settings(deadline=None, max_examples=100)
def test_no_rollout_of_several_turns_is_ever_torn(rows, chunks):
    groups, members, turns, rewards = zip(*rows, strict=True)
    table = pa.table(
        {
            "seq": range(len(rows)),
            "experience_id": [str(number) for number in range(len(rows))],
            "group_id": groups,
            "member": members,
            "turn": turns,
            "reward": pa.array(rewards, pa.float32()),
        }
    )
    table = pa.concat_tables([table.slice(start, chunks) for start in range(0, len(rows), chunks)])
    out = pipeline([{"reward_range_filter": {"min_reward": 0}}]).run(table)["verdict"].to_pylist()
    rollouts = {}
    for (group, member, _, reward), verdict in zip(rows, out, strict=True):
        rollouts.setdefault((group, member), []).append((reward > 0, verdict))
    for turns_of_one in rollouts.values():
        wanted = "kept" if all(fine for fine, _ in turns_of_one) else "dropped"
        assert {verdict for _, verdict in turns_of_one} == {wanted}
