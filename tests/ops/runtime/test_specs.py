"""Operator lists: every mistake is named, at once, with a suggestion."""

import pyarrow as pa
import pytest

from ops.runtime.allowlist import NATIVE_OPERATORS
from ops.runtime.hygiene import registry
from ops.runtime.pipeline import OperatorPipeline
from rft_data.core.errors import RecipeError, UnknownComponentError


def build(*operators, **options):
    return OperatorPipeline(operators, name="experience_ops", **options)


def test_unknown_operator_suggests_the_nearest():
    with pytest.raises(
        UnknownComponentError, match=r"experience_ops\[0\].*did you mean 'reward_range_filter'"
    ):
        build({"reward_rang_filter": {}})


def test_unknown_argument_suggests_the_nearest():
    with pytest.raises(RecipeError, match=r"\[0\]\.reward_variance_filter\.min_stdd.*did you mean 'min_std'"):
        build({"reward_variance_filter": {"min_stdd": 0.1}})


@pytest.mark.parametrize(
    ("operator", "args", "message"),
    [
        ("reward_variance_filter", {"min_std": "0.1"}, "valid number, got '0.1'"),
        ("reward_variance_filter", {"min_std": float("inf")}, "JSON value"),
        ("grpo_advantage_mapper", {"scale": "all"}, "'group', 'batch' or 'none', got 'all'"),
        ("grpo_advantage_mapper", {"eps": True}, "valid number, got True"),
        ("text_length_filter", {"min_len": 2.5}, "valid integer, got 2.5"),
        ("document_minhash_deduplicator", {"jaccard_threshold": 1.5}, "less than or equal to 1, got 1.5"),
        ("text_length_filter", {"skip_op_error": True}, "a failing row would be lost"),
    ],
)
def test_wrong_argument_value_is_named(operator, args, message):
    with pytest.raises(RecipeError, match=message):
        build({operator: args})


def test_value_an_operator_itself_refuses_is_a_recipe_error():
    with pytest.raises(RecipeError, match=r"'reward_range_filter' does not accept .*min_reward 2 is above"):
        build({"reward_range_filter": {"min_reward": 2, "max_reward": 1}})


def test_all_mistakes_are_reported_at_once():
    with pytest.raises(RecipeError) as caught:
        build(
            {"reward_rang_filter": {}},
            {"reward_variance_filter": {"min_stdd": 1, "min_std": "x"}},
            {"a": {}, "b": {}},
            {"text_length_filter": 3},
        )
    message = str(caught.value)
    for place in (
        "[0]",
        "[1].reward_variance_filter.min_stdd",
        "[1].reward_variance_filter.min_std:",
        "[2]",
        "[3]",
    ):
        assert f"experience_ops{place}" in message


def test_operator_that_evaluates_its_argument_is_refused_unless_allowed():
    evil = {"python_lambda_mapper": {"lambda_str": "lambda d: d"}}
    with pytest.raises(RecipeError, match=r"python_lambda_mapper: .*allow_unsafe_ops"):
        build(evil)
    assert build(evil, allow_unsafe=True).pipeline_hash


@pytest.mark.parametrize(
    "operator",
    ["python_file_mapper", "remove_repeat_sentences_mapper", "image_ohem_selector", "llm_analysis_filter"],
)
def test_allow_list_leaves_out_operators_that_execute_or_trust_code(operator):
    assert operator in registry().modules
    assert operator not in NATIVE_OPERATORS


def test_allow_list_names_operators_that_exist_with_arguments_we_can_read():
    from ops.runtime.specs import _arguments

    for name in NATIVE_OPERATORS:
        accepted, required = _arguments(registry().modules[name])
        assert "text_key" in accepted
        assert not required


def test_null_is_accepted_where_it_is_the_default():
    assert build(
        {"reward_range_filter": {"min_reward": None}}, {"fix_unicode_mapper": {"normalization": None}}
    )


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        ("words_num_filter", {"tokenization": True}),
        ("alphanumeric_filter", {"tokenization": True}),
        ("document_minhash_deduplicator", {"tokenization": "sentencepiece", "tokenizer_model": "m"}),
    ],
)
def test_argument_that_fetches_a_model_is_refused_unless_allowed(operator, args):
    with pytest.raises(RecipeError, match=rf"{operator}\.tokenization: .*fetches a model.*allow_unsafe_ops"):
        build({operator: args})


def test_argument_that_imports_code_is_refused_unless_allowed():
    args = {"model": "tests.ops.similarity.test_semantic_diversity_filter:toy", "max_similarity": 0.9}
    with pytest.raises(RecipeError, match=r"filter\.model: .*imports code.*allow_unsafe_ops"):
        build({"semantic_diversity_filter": args})
    build({"semantic_diversity_filter": args}, allow_unsafe=True)
    build({"semantic_diversity_filter": {**args, "model": "/a/folder"}})


@pytest.mark.slow
def test_no_operator_of_the_allow_list_evaluates_or_runs_anything():
    import ast
    import inspect
    import sys

    forbidden = {"eval", "exec", "compile", "open", "__import__", "system", "Popen", "run", "check_call"}
    for name in NATIVE_OPERATORS:
        tree = ast.parse(inspect.getsource(sys.modules[registry().modules[name].__module__]))
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        plain = {call.id for call in calls if isinstance(call, ast.Name)}
        dotted = {ast.unparse(call) for call in calls if isinstance(call, ast.Attribute)}
        assert not plain & forbidden, name
        assert not {call for call in dotted if call.split(".")[0] in {"os", "subprocess", "requests"}}, name


OWN = """
from data_juicer.ops.base_op import OPERATORS, Filter
import numpy as np
from ops.base import ArrowFilter, Judgement

@OPERATORS.register_module("brevity_filter")
class BrevityFilter(ArrowFilter, Filter):
    required_columns = ("completion_text",)

    def __init__(self, longest: int = 3, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.longest = longest

    def judge(self, table):
        keep = np.array([len(text) <= self.longest for text in table["completion_text"].to_pylist()])
        return Judgement(keep, ["too long"] * int((~keep).sum()))
"""


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """A file with an operator of the user's, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_ops.py").write_text(OWN)
    yield "my_ops.py:BrevityFilter"
    registry().modules.pop("brevity_filter", None)


def test_operator_of_ones_own_is_named_by_its_file(own_file, experiences):
    run = build({own_file: {"longest": 4}})
    table = experiences(["g", "g"], [1.0, 1.0])
    texts = pa.array(["four", "fives"])
    out = run.run(table.set_column(table.schema.get_field_index("completion_text"), "completion_text", texts))
    assert out["verdict"].to_pylist() == ["kept", "dropped"]
    with pytest.raises(RecipeError, match=r"BrevityFilter\.longst: unknown argument; did you mean 'longest'"):
        build({own_file: {"longst": 4}})
    with pytest.raises(
        RecipeError, match=r"x: unknown argument; those that it takes: rft ops show .*Brevity"
    ):
        build({own_file: {"x": 4}})
    with pytest.raises(UnknownComponentError, match="'math:pi' is no operator of Data-Juicer's registry"):
        build({"math:pi": {}})


def test_data_juicers_unsafe_operators_are_not_let_in_by_their_import_path():
    path = "data_juicer.ops.mapper.python_lambda_mapper:PythonLambdaMapper"
    with pytest.raises(RecipeError, match="set allow_unsafe_ops: true"):
        build({path: {}})
