"""What a shell completes, and help without colours."""

import os
import re
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from rft_data.cli.completion import operator_names, recipe_keys, recipe_names, run_folders
from tests.rft_data.cli.test_cli import ROOT


class Words:
    """What is typed already, as a shell's completion has it."""

    def __init__(self, **params: object) -> None:
        self.params = params


def test_names_of_recipes_runs_and_operators(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "one" / "recipe.json").touch()
    (tmp_path / "quick.yaml").touch()
    with chdir(tmp_path):
        assert list(recipe_names("qui")) == ["quick.yaml", "quickstart"]
        assert list(run_folders("ru")) == ["runs/one"]
    assert list(operator_names("grpo")) == ["grpo_advantage_mapper"]


def test_keys_of_the_recipe_that_was_named() -> None:
    quickstart = str(ROOT / "recipes" / "quickstart.yaml")
    found = list(recipe_keys(Words(recipe=quickstart), "stages.1.s"))  # type: ignore[arg-type]
    assert "stages.1.steps=" in found
    assert list(recipe_keys(Words(recipe="nowhere.yaml"), "s")) == []  # type: ignore[arg-type]
    assert list(recipe_keys(Words(), "s")) == []  # type: ignore[arg-type]


@pytest.mark.heavy
def test_a_shell_gets_names_and_no_color_is_heard() -> None:
    script = str(Path(sys.executable).with_name("rft"))
    asked = {"_RFT_COMPLETE": "complete_bash", "COMP_WORDS": "rft run quicks", "COMP_CWORD": "2"}
    done = subprocess.run(
        [script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **asked, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.split() == ["quickstart"]
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    colours = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    for extra, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        shown = subprocess.run(
            [script, "recipe", "--help"], capture_output=True, text=True, cwd=ROOT,
            env={**plain, **colours, **extra},
        )  # fmt: skip
        assert (re.search(r"\x1b\[(\d;)?3\d", shown.stdout) is not None) == coloured
