"""How an operator may be told to run, and what its failures mean."""

import json

import pyarrow as pa
import pytest

from ops.runtime.counts import LostRow
from ops.runtime.limits import Limits
from ops.runtime.native import MapperStage
from ops.runtime.pipeline import OperatorPipeline
from ops.runtime.workers import WorkerStage
from rft_data.core.errors import OperatorError, RecipeError
from rft_data.recipe.running import OperatorLimits

FAILS = [{"reward_range_filter": {"min_reward": 0}}, {"fails_on_bad_text_mapper": {}}]


def pipeline(operators, **limits):
    return OperatorPipeline(operators, name="experience_ops", allow_unsafe=True, limits=limits)


def with_bad_texts(experiences):
    return experiences(["g"] * 6, [1.0, 1.0, -1.0, 1.0, 1.0, 1.0], ["ok", "bad", "bad", "fine", "bad", "ok"])


def test_keep_lets_rows_go_on_unjudged_and_says_so(experiences):
    run = pipeline(FAILS, fails_on_bad_text_mapper=Limits("keep"))
    out = run.run(with_bad_texts(experiences))
    assert out["verdict"].to_pylist() == ["kept", "kept", "dropped", "kept", "kept", "kept"]
    stats = [json.loads(text) for text in out["stats"].to_pylist()]
    failure = {"fails_on_bad_text_mapper": "fails_on_bad_text_mapper: KeyError: 'a bad text'"}
    assert stats[0] == {"length": 2}
    assert stats[1] == stats[4] == {"length": None, "unjudged": failure}
    assert stats[2] == {}
    metrics = run.metrics()
    assert metrics["fails_on_bad_text_mapper/unjudged"] == 2
    assert metrics["fails_on_bad_text_mapper/quarantined"] == 0
    assert metrics["fails_on_bad_text_mapper/keep_rate"] == 1.0
    assert metrics["reward_range_filter/keep_rate"] == pytest.approx(5 / 6)


def test_keep_holds_when_the_operator_fails_on_every_row(experiences):
    table = experiences(["g"] * 3, [1.0] * 3, ["bad"] * 3)
    out = pipeline([{"fails_on_bad_text_mapper": {}}], fails_on_bad_text_mapper=Limits("keep")).run(table)
    assert out["verdict"].to_pylist() == ["kept"] * 3


def test_stop_ends_the_run_with_the_first_failure(experiences):
    run = pipeline(FAILS, fails_on_bad_text_mapper=Limits("stop"))
    with pytest.raises(OperatorError, match=r"failed on 2 of 5 rows, first on row 1 with: .*'a bad text'"):
        run.run(with_bad_texts(experiences))


def test_native_filter_after_an_unjudged_row_gives_only_its_own_reason(experiences):
    operators = [{"text_length_filter": {"min_len": 1}}, {"words_num_filter": {"min_num": 2}}]
    table = experiences(["g"] * 3, [1.0] * 3, ["one", "two words", "three"])
    texts = pa.array([None, "two words", "three"])
    table = table.set_column(table.column_names.index("completion_text"), "completion_text", texts)
    both = Limits("keep")
    out = pipeline(operators, text_length_filter=both, words_num_filter=both).run(table)
    assert out["verdict"].to_pylist() == ["kept", "kept", "dropped"]
    assert out["reason"].to_pylist()[2] == "num_words=1"
    assert json.loads(out["stats"][0].as_py())["unjudged"].keys() == {
        "text_length_filter",
        "words_num_filter",
    }


@pytest.mark.slow
def test_selector_that_fails_stops_the_run_unless_it_may_be_passed_over(experiences):
    operators = [{"topk_specified_field_selector": {"field_key": "no_such_column", "topk": 1}}]
    table = experiences(["g"] * 2, [1.0] * 2)
    with pytest.raises(OperatorError, match="no_such_column"):
        pipeline(operators).run(table)
    out = pipeline(operators, topk_specified_field_selector=Limits("keep")).run(table)
    assert out["verdict"].to_pylist() == ["kept", "kept"]
    assert "no_such_column" in out["stats"][0].as_py()


def test_how_an_operator_runs_is_no_part_of_the_hash():
    assert pipeline(FAILS).pipeline_hash == pipeline(FAILS, reward_range_filter=Limits("stop")).pipeline_hash


def test_first_lost_rows_of_each_operator_are_kept_for_the_log(experiences):
    run = pipeline(FAILS)
    table = with_bad_texts(experiences)
    for _ in range(3):
        run.run(table)
    samples = run.samples()
    reason = "fails_on_bad_text_mapper: KeyError: 'a bad text'"
    assert samples["reward_range_filter"][0] == LostRow("e2", "dropped", "reward -1 is not in [0, inf]")
    assert [row.experience_id for row in samples["fails_on_bad_text_mapper"]] == [
        "e1",
        "e4",
        "e1",
        "e4",
        "e1",
    ]
    assert samples["fails_on_bad_text_mapper"][0] == LostRow("e1", "quarantined", reason)
    assert run.samples() == {}


def test_limits_of_an_operator_that_is_not_there_are_refused():
    with pytest.raises(RecipeError, match="did you mean 'reward_range_filter'"):
        pipeline(FAILS, reward_rang_filter=Limits("keep"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget_s": 30.0}, r"'budget_s' 30 cannot be enforced in the run's own process.*'workers: 1'"),
        ({"where": "ray"}, "give 'workers: 1' or more"),
        ({"workers": 1, "budget_s": 0.0}, "budget_s"),
        ({"workers": -1}, "workers"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused_alike_in_recipes_and_code(given, message):
    for kind in (Limits, OperatorLimits):
        with pytest.raises(ValueError, match=message):
            kind(**given)


def test_recipe_section_and_limits_say_the_same():
    assert Limits(**OperatorLimits().model_dump()) == Limits()
    given = {"on_failure": "stop", "workers": 2, "where": "ray", "budget_s": 1.5}
    assert Limits(**OperatorLimits(**given).model_dump()) == Limits(**given)


def test_operators_that_some_texts_stall_get_a_worker_and_a_budget():
    given = {"pii_redaction_mapper": Limits("keep"), "clean_links_mapper": Limits(workers=2, budget_s=5)}
    names = ["clean_copyright_mapper", "pii_redaction_mapper", "clean_links_mapper", "clean_email_mapper"]
    names.append("expand_macro_mapper")
    run = pipeline([{name: {}} for name in names], **given)
    assert [step.limits for step in run._steps] == [
        Limits(workers=1, budget_s=60),
        Limits("keep", workers=1, budget_s=60),
        Limits(workers=2, budget_s=5),
        Limits(),
        Limits(workers=1, budget_s=60),
    ]
    made = [WorkerStage, WorkerStage, WorkerStage, MapperStage, WorkerStage]
    assert [type(step.stage) for step in run._steps] == made


AFTER_OUTAGE = [
    {"fails_on_bad_text_mapper": {}},
    {"reward_shaping_mapper": {"weights": {"reward": 1.0, "length": 0.5}}},
    {"grpo_advantage_mapper": {}},
]


def test_rows_without_the_column_of_an_operator_in_full_outage_fail_where_it_is_needed(experiences):
    table = experiences(["g"] * 2, [1.0, 0.0], ["bad"] * 2)
    fails = Limits("keep")
    out = pipeline(AFTER_OUTAGE, fails_on_bad_text_mapper=fails).run(table)
    assert out["verdict"].to_pylist() == ["quarantined"] * 2
    assert out["dropped_by"].to_pylist() == ["reward_shaping_mapper"] * 2
    assert "needs column 'length'" in out["reason"][0].as_py()
    run = pipeline(AFTER_OUTAGE, fails_on_bad_text_mapper=fails, reward_shaping_mapper=Limits("keep"))
    out = run.run(table)
    assert out["verdict"].to_pylist() == ["kept"] * 2
    assert out["advantage"].null_count == 0
    assert json.loads(out["stats"][0].as_py())["unjudged"].keys() == {
        "fails_on_bad_text_mapper",
        "reward_shaping_mapper",
    }
    run = pipeline(AFTER_OUTAGE, fails_on_bad_text_mapper=fails, reward_shaping_mapper=Limits("stop"))
    with pytest.raises(OperatorError, match="needs column 'length'"):
        run.run(table)


def test_column_that_nobody_adds_is_still_a_mistake_of_the_list(experiences):
    ops = [AFTER_OUTAGE[0], {"reward_shaping_mapper": {"weights": {"no_such_column": 1.0}}}]
    table = experiences(["g"] * 2, [1.0, 0.0], ["bad", "fine"])
    with pytest.raises(OperatorError, match="needs column 'no_such_column'"):
        pipeline(ops, fails_on_bad_text_mapper=Limits("keep")).run(table)
