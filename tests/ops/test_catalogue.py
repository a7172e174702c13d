"""The catalogue of operators, read from their source, against the operators themselves."""

import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ops import OPERATOR_MODULES
from ops.base import ArrowOperator
from ops.catalogue import operator, operators
from ops.runtime.allowlist import NATIVE_OPERATORS
from rft_data.core.errors import UnknownComponentError

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_allowed_operator_is_there_and_says_what_it_does() -> None:
    found = operators()
    assert [one.name for one in found] == [*OPERATOR_MODULES, *sorted(NATIVE_OPERATORS)]
    assert [one.name for one in found if len(one.about.split()) < 4 or not one.source.endswith(".py")] == []


def test_signature_formula_arguments_and_example_of_one() -> None:
    one = operator("grpo_advantage_mapper")
    assert one.signature == "grpo_advantage_mapper(scale: Scale = 'group', eps: float = 0.0001)"
    assert "(r - mean) / (std + eps)" in one.doc
    assert "arXiv:2402.03300" in one.doc
    assert one.arguments_doc.startswith("scale: which std to divide by")
    assert one.example == 'experience_ops:\n  - grpo_advantage_mapper: {scale: "group", eps: 0.0001}'
    native = operator("text_length_filter")
    assert native.example == "task_ops:\n  - text_length_filter: {min_len: 10}"
    assert ":param kwargs" not in native.arguments_doc


def test_unknown_operator_gets_a_suggestion() -> None:
    with pytest.raises(UnknownComponentError, match=r"no operator 'grpo_advantage'.* did you mean"):
        operator("grpo_advantage")


@pytest.mark.slow
def test_examples_pass_the_check_of_recipes_and_units_are_the_operators_own() -> None:
    from ops.runtime.specs import operator_class, parse

    for one in operators():
        ((key, entries),) = YAML(typ="safe", pure=True).load(one.example).items()
        (spec,) = parse(entries, key, allow_unsafe=False)
        kind = operator_class(one.name)
        names = {argument.name for argument in one.arguments}
        assert spec.args.keys() <= names
        if issubclass(kind, ArrowOperator):
            wanted = "batch" if kind.whole_batch else "row" if kind.group_key is None else "group"
            assert one.unit == wanted, one.name


@pytest.mark.slow
def test_asking_imports_no_data_juicer() -> None:
    heavy = "print({'data_juicer', 'pyarrow'} & set(sys.modules))"
    code = f"import sys, ops.catalogue; ops.catalogue.operators(); {heavy}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "set()\n"
