"""The page of algorithms is made from the registries, names what exists, and docs/ holds its present form."""

from __future__ import annotations

import re
from pathlib import Path

from docs.pages.algorithms import OPERATORS, TRL_LOSSES, advantage_of, loss_of, page, paper
from ops import OPERATOR_MODULES
from rft_data.recipe.algorithms import ALGORITHMS
from trainers.policy.batch_ops import BATCH_OPS
from trainers.policy.losses import LOSSES

ROOT = Path(__file__).parents[2]


def test_page_in_docs_is_the_one_the_registries_make() -> None:
    written = (ROOT / "docs" / "algorithms.md").read_text()
    assert written == page(), "run `python -m docs.pages.algorithms > docs/algorithms.md`"


def test_every_entry_of_every_registry_has_a_formula_and_a_line() -> None:
    lines = page().splitlines()
    for name in [*ALGORITHMS, *BATCH_OPS, *LOSSES, *OPERATORS, *TRL_LOSSES]:
        assert any(line.startswith(f"| `{name}` |") for line in lines), name
    assert not [name for table in (BATCH_OPS, LOSSES) for name, entry in table.items() if not entry.formula]


def test_every_advantage_operator_is_on_the_page() -> None:
    assert {name for name in OPERATOR_MODULES if name.endswith("advantage_mapper")} == set(OPERATORS)


def test_named_tests_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", page()))
    assert named
    assert not [path for path in named if not (ROOT / path).is_file()]


def test_presets_name_known_parts() -> None:
    for name, preset in ALGORITHMS.items():
        assert advantage_of(preset), name
        assert loss_of(preset), name
        if preset.loss is None:
            assert preset.trl_loss["loss_type"] in TRL_LOSSES, name
        group, lease = (
            [key for entry in part for key in entry] for part in (preset.advantage, preset.batch_ops)
        )
        assert set(group) <= OPERATOR_MODULES.keys(), name
        assert set(lease) <= BATCH_OPS.keys(), name


def test_sources_are_links() -> None:
    assert (
        paper("arXiv:2402.03300") == paper("2402.03300") == "[2402.03300](https://arxiv.org/abs/2402.03300)"
    )
    assert paper("doi:10.1/x") == "[10.1/x](https://doi.org/10.1/x)"
