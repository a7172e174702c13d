"""Data-Juicer's own operators in our runtime: equal to its own, strict, nothing lost."""

import json

import pyarrow as pa
import pytest

from ops.runtime.hygiene import registry
from ops.runtime.pipeline import OperatorPipeline
from rft_data.core.errors import MissingExtraError, OperatorError, RecipeError

TEXTS = [
    "Two  plus\ttwo is four.",
    "The answer is 4",
    "the ANSWER is 4",
    "no",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "write to me@example.com or see https://example.com now",
    "The answer is 4",
    "one two three four five six seven eight nine ten eleven twelve",
] * 3

RECIPES = {
    "ours": [{"reward_range_filter": {"min_reward": 0.2}}, {"reward_variance_filter": {}}],
    "advantage": [{"grpo_advantage_mapper": {}}],
    "filters": [{"text_length_filter": {"min_len": 5}}, {"character_repetition_filter": {"max_ratio": 0.5}}],
    "mappers": [
        {"clean_email_mapper": {}},
        {"clean_ip_mapper": {}},
        {"whitespace_normalization_mapper": {}},
    ],
    "single": [{"specified_numeric_field_filter": {"field_key": "reward", "min_value": 0.3}}],
    "exact": [{"document_deduplicator": {"lowercase": True}}],
    "near": [{"document_minhash_deduplicator": {"window_size": 2}}],
    "lines": [{"document_line_deduplicator": {"frequency_threshold": 2}}],
    "selector": [
        {"text_length_filter": {"min_len": 1}},
        {"topk_specified_field_selector": {"field_key": "__dj__stats__.text_len", "topk": 4}},
    ],
    "mixed": [
        {"whitespace_normalization_mapper": {}},
        {"reward_variance_filter": {}},
        {"words_num_filter": {"min_num": 2}},
        {"document_deduplicator": {}},
        {"grpo_advantage_mapper": {"scale": "none"}},
    ],
}


def rows(experiences):
    rewards = [0.5 if i % 5 == 4 else i % 3 / 2 for i in range(len(TEXTS))]  # g4 does not vary
    table = experiences([f"g{i % 5}" for i in range(len(TEXTS))], rewards, TEXTS)
    return table.select(
        ["seq", "experience_id", "group_id", "token_ids", "logprobs", "completion_text", "reward"]
    )


def by_data_juicer(operators, table):
    """The same list through Data-Juicer's own NestedDataset.process."""
    from data_juicer.core.data import NestedDataset
    from datasets import Dataset
    from datasets.table import InMemoryTable

    options = {"text_key": "completion_text", "num_proc": None, "auto_op_parallelism": False}
    ops = [
        registry().modules[name](**({} if name in ("reward_range_filter",) else options), **(args or {}))
        for operator in operators
        for name, args in operator.items()
    ]
    dataset = NestedDataset(Dataset(InMemoryTable(table))).process(ops, open_monitor=False)
    return dataset.with_format("arrow")[:]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_our_runtime_equals_data_juicers_own(experiences, recipe):
    table = rows(experiences)
    ours = OperatorPipeline(RECIPES[recipe], name=recipe).run_tasks(table).table
    theirs = by_data_juicer(RECIPES[recipe], table)
    assert 0 < ours.num_rows <= len(TEXTS)
    theirs = theirs.sort_by("seq")  # a selector of theirs sorts by its field; ours keeps input order
    for name in [*table.column_names, *(["advantage"] if "advantage" in ours.column_names else [])]:
        assert ours[name].to_pylist() == theirs[name].to_pylist(), name
        assert ours[name].type == theirs[name].type, name


@pytest.mark.slow
def test_recipes_above_do_drop_and_edit(experiences):
    table = rows(experiences)
    for recipe in ("ours", "filters", "single", "exact", "near", "selector", "mixed"):
        kept = OperatorPipeline(RECIPES[recipe], name=recipe).run_tasks(table).kept
        assert 0 < len(kept) < len(TEXTS), recipe
    for recipe in ("mappers", "lines"):
        out = OperatorPipeline(RECIPES[recipe], name=recipe).run_tasks(table).table
        assert out["completion_text"].to_pylist() != TEXTS, recipe


def test_filter_reason_is_what_it_measured_and_stats_reach_the_annotation(experiences):
    run = OperatorPipeline(
        [{"text_length_filter": {"min_len": 4}}, {"words_num_filter": {"min_num": 2}}], name="experience_ops"
    )
    out = run.run(experiences(["g"] * 3, [1.0] * 3, ["no", "oneword", "two words"]))
    assert out["reason"].to_pylist() == ["text_len=2", "num_words=1", ""]
    assert json.loads(out["stats"][2].as_py()) == {"text_len": 9, "num_words": 2}


def test_row_that_cannot_be_read_is_quarantined_by_every_kind():
    table = pa.table({"text": ["fine enough", None, "also fine"]})
    for operator in ("text_length_filter", "whitespace_normalization_mapper", "document_deduplicator"):
        verdicts = OperatorPipeline([{operator: {}}], name="task_ops", text_column="text").run_tasks(table)
        assert verdicts.reports[0].quarantined.keys() == {1}
        assert verdicts.reports[0].quarantined[1].startswith(f"{operator}: ")
        assert len(verdicts.kept) + len(verdicts.reports[0].dropped) == 2


def test_selector_that_fails_stops_the_run(experiences):
    run = OperatorPipeline(
        [{"topk_specified_field_selector": {"field_key": "no_such_column", "topk": 1}}], name="experience_ops"
    )
    with pytest.raises(OperatorError, match=r"topk_specified_field_selector.* 2 rows .*no_such_column"):
        run.run(experiences(["g"] * 2, [1.0] * 2))


def test_operator_that_multiplies_rows_is_refused(experiences):
    run = OperatorPipeline([{"text_chunk_mapper": {"max_len": 4}}], name="experience_ops", allow_unsafe=True)
    with pytest.raises(OperatorError, match="'text_chunk_mapper' turned 1 rows into"):
        run.run(experiences(["g"], [1.0], ["a text of several chunks"]))


def test_grouper_is_refused():
    with pytest.raises(RecipeError, match="'key_value_grouper' is a Data-Juicer Grouper"):
        OperatorPipeline([{"key_value_grouper": {}}], name="experience_ops", allow_unsafe=True)


def test_missing_package_is_named_and_not_installed(monkeypatch):
    import importlib
    import subprocess

    def refuse(*_, **__):
        raise AssertionError("tried to start a process")

    real = importlib.import_module

    def without_simhash(name, *args):
        if name.split(".")[0] == "simhash":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(name, *args)

    monkeypatch.setattr(subprocess, "check_call", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(importlib, "import_module", without_simhash)
    with pytest.raises(MissingExtraError, match="'simhash-pybind', which is not installed"):
        OperatorPipeline(
            [{"document_simhash_deduplicator": {}}], name="task_ops", text_column="text"
        ).run_tasks(pa.table({"text": ["one text", "another text"]}))
