"""`rft recipe validate` reads code of the user's that a recipe names, and imports none of it."""

import sys
from contextlib import chdir
from pathlib import Path

import pytest

from rft_data.core.errors import UnknownComponentError
from rft_data.core.lookup import OWN_CODE, load
from tests.rft_data.cli.test_cli import rft
from tests.rft_data.run.test_online import write_recipe

TRAP = """\
from pathlib import Path
Path({marker!r}).touch()
def Thing(*args, **kwargs): ...
"""
"""A module that leaves a marker when it is imported."""

EVERYWHERE = (
    "task_ops=[{{'{name}': {{}}}}]",
    "experience_ops=[{{'{name}': {{}}}}]",
    "experts=[{{use: '{name}', tasksets: [sums]}}]",
    "imports=[{{source: {{use: '{name}'}}}}]",
    "tasks.0={{name: sums, source: {{use: '{name}'}}, prompt: q, answer: a}}",
    "selector={{use: '{name}'}}",
    "sampler={{use: '{name}'}}",
    "placement={{use: '{name}'}}",
    "explorer.engine={{use: '{name}'}}",
    "explorer.reward=[{{use: '{name}'}}]",
    "explorer.workflow={{use: '{name}'}}",
    "explorer.workflows={{other: {{use: '{name}'}}}}",
    "explorer.render='{name}'",
    "stages.1.algorithm='{name}'",
    "stages.1.loss={{use: '{name}'}}",
    "stages.1.batch_ops=[{{'{name}': {{}}}}]",
    "task_upkeep={{every: 2, ops: [{{'{name}': {{}}}}], synthesis: {{use: '{name}'}}}}",
)
"""Overrides that put a name wherever a recipe takes one's own code."""
NOWHERE = (
    "monitor.trackers=['{name}']",
    "stages.1.kl={{coef: 0.1, estimator: '{name}'}}",
)
"""And where it takes none."""


@pytest.fixture(params=["trap_of_a_test:Thing", "./trap_of_a_test.py:Thing", "traps_of_a_test.inner:Thing"])
def name(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: Path
) -> str:
    """An import path that leads to a trap beside the recipe."""
    monkeypatch.setenv(OWN_CODE, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    package = tmp_path / "traps_of_a_test"
    package.mkdir()
    for file in (tmp_path / "trap_of_a_test.py", package / "__init__.py", package / "inner.py"):
        file.write_text(TRAP.format(marker=str(marker)))
    return str(request.param)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that a trap leaves."""
    return tmp_path / "imported"


@pytest.mark.slow
def test_no_code_of_the_users_is_imported(tmp_path: Path, name: str, marker: Path) -> None:
    path = str(write_recipe(tmp_path))
    done = rft("recipe", "validate", path, *(one.format(name=name) for one in EVERYWHERE))
    assert (done.exit_code, marker.exists()) == (0, False), done.stderr
    for one in NOWHERE:
        refused = rft("recipe", "validate", path, one.format(name=name))
        assert (refused.exit_code, marker.exists()) == (2, False), refused.stdout
        assert "is not known" in refused.stderr
    with pytest.raises(UnknownComponentError, match="has no 'Other'"), chdir(tmp_path):
        load(name.replace("Thing", "Other"), "trap")
    assert marker.exists(), "the trap itself works"
