"""What a recipe in the page's form would come to; no folder is looked at that no shown run uses."""

from pathlib import Path

import pytest

from rft_data.recipe.shipped import shipped_recipe
from rft_data.run.recipe_form_child import work


def outlook(text: str, models: list[str]) -> dict[str, str]:
    request = {"text": text, "drawn": text, "fields": {}, "explain": False, "models": models}
    found = work(request)
    assert found["mistakes"] == []
    return dict(found["outlook"])


@pytest.mark.slow
def test_a_recipe_without_mistakes_says_what_it_would_come_to() -> None:
    found = outlook(shipped_recipe("quickstart").path.read_text(), [])
    assert "16 groups x 8 rollouts" in " ".join(found.values())
    assert {"staleness", "model", "memory", "disk"} <= found.keys()


@pytest.mark.parametrize("shown", [True, False])
def test_only_models_of_shown_runs_are_looked_at(tmp_path: Path, shown: bool) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0no json.")
    text = f"extends: quickstart\nmodel: {{path: {tmp_path}, build: null}}\n"
    found = outlook(text, [str(tmp_path)] if shown else [])
    if shown:
        assert "cannot be sized up" in found["model"]
    else:
        assert found["memory"].startswith("not known")
    empty = {"text": "name: [", "drawn": "", "fields": {}, "explain": False, "models": []}
    assert work(empty)["outlook"] == []


@pytest.mark.slow
def test_nothing_of_the_machine_is_looked_at_for_a_recipe_that_measures_or_trains(tmp_path: Path) -> None:
    (tmp_path / "buffer").mkdir()
    (tmp_path / "config.json").write_text("{}")
    measures = f"extends: sums_eval\nmodels: [{tmp_path}]\n"
    assert outlook(measures, [])["memory"] == f"not known: '{tmp_path}' is not looked at here"
    trains = f"extends: sums_dpo\nbuffer: {{uri: {tmp_path}/buffer}}\n"
    assert outlook(trains, [])["stage 0"].endswith("how many there are is not looked up here")
