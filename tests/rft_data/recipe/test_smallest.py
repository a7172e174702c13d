"""The lines that messages tell a person to write for what is missing make valid recipes."""

import json
from pathlib import Path

import pytest

from rft_data.core.errors import RecipeError
from rft_data.recipe.load import load_recipe
from rft_data.recipe.modes import MODES
from rft_data.recipe.smallest import smallest

HEAD = ("recipe", "mode")


@pytest.mark.parametrize("mode", list(MODES))
def test_the_lines_that_a_message_names_make_a_recipe(tmp_path: Path, mode: str) -> None:
    row = {"question": "1+1?", "answer": "#### 2"}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    required = [name for name, field in MODES[mode].model_fields.items() if field.is_required()]
    lines = [smallest(name, mode) for name in required if name not in HEAD]
    path = tmp_path / "first.yaml"
    path.write_text("\n".join(["recipe: 1", f"mode: {mode}", *lines, ""]))
    assert load_recipe(path).name == "first"


def test_a_missing_section_is_told_with_a_line_to_write(tmp_path: Path) -> None:
    path = tmp_path / "first.yaml"
    path.write_text("recipe: 1\nmode: explore\nname: first\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    for key in ("model", "buffer", "explorer", "tasks", "run_dir", "groups"):
        [line] = [one for one in str(caught.value).splitlines() if f" {key}: is missing" in one]
        assert f"Write for example: {smallest(key, 'explore')}" in line
