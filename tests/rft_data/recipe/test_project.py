"""`rft init` writes a project whose test passes as written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rft_data.core.errors import RecipeError
from rft_data.recipe.load import check_recipe
from rft_data.recipe.new import Goal, Wanted, write_recipe
from rft_data.recipe.project import write_project
from tests.rft_data.cli.test_cli import ROOT, rft


@pytest.mark.slow
def test_the_test_of_a_new_project_passes_as_written(tmp_path: Path) -> None:
    done = rft("init", str(tmp_path / "my sums"))
    assert done.exit_code == 0, done.stderr
    again = rft("init", str(tmp_path / "my sums"), "--json")
    assert json.loads(again.stdout) == {"written": done.stdout.splitlines()}
    assert "name: my-sums\n" in (tmp_path / "my sums" / "recipe.yaml").read_text()
    assert {path.name for path in (tmp_path / "my sums").iterdir()} == {
        "recipe.yaml", "data.jsonl", "reward.py", "test_reward.py", "README.md", "recipe.schema.json",
    }  # fmt: skip
    passed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"],
        capture_output=True, text=True, cwd=tmp_path / "my sums", env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert passed.returncode == 0, passed.stdout
    assert "7 passed" in passed.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2026", "true", "1e5"])
def test_a_folder_may_be_called_as_a_number(tmp_path: Path, name: str) -> None:
    write_project(tmp_path / name)
    assert check_recipe(tmp_path / name / "recipe.yaml").name == name
    (tmp_path / "d.jsonl").write_text('{"12": "1+1?", "on": "2"}\n')
    new = Wanted(Goal.GRPO, str(tmp_path / "d.jsonl"), "tiny", "12", "on")
    write_recipe(new, tmp_path / f"{name}.yaml")
    assert check_recipe(tmp_path / f"{name}.yaml").name == name


@pytest.mark.slow
def test_a_file_of_ones_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("mine")
    with pytest.raises(RecipeError, match=r"reward\.py is there already"):
        write_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["reward.py"]
    (tmp_path / "reward.py").unlink()
    assert write_project(tmp_path) == write_project(tmp_path)


@pytest.mark.slow
def test_a_schema_of_an_older_version_is_replaced_and_not_a_file_of_ones_own(tmp_path: Path) -> None:
    write_project(tmp_path)
    schema = tmp_path / "recipe.schema.json"
    now = schema.read_text()
    schema.write_text(now.replace("2020-12", "2019-09"))
    write_project(tmp_path)
    assert schema.read_text() == now
    schema.write_text("{}")
    with pytest.raises(RecipeError, match=r"recipe\.schema\.json is there already"):
        write_project(tmp_path)
