"""The wheel that is built from the sdist, installed in an environment without the checkout."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from rft_data.core.errors import RecipeError
from rft_data.core.version import __version__
from rft_data.recipe.load import validate_recipe
from rft_data.recipe.shipped import shipped_recipes

ROOT = Path(__file__).parents[1]
PACKAGES = ("rft_data", "ops", "recipes", "trainers", "explorers")
BUILT_FROM = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "docs", *PACKAGES)

pytestmark = pytest.mark.slow


def run(command: list[str | Path], folder: Path) -> str:
    """What a command prints, in a process that is told of no checkout."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(kind: str, source: Path) -> Path:
    """The `sdist` or `wheel` of a folder, as pip builds it."""
    code = f"from setuptools.build_meta import build_{kind} as build; build('dist')"
    run([sys.executable, "-c", code], source)
    (made,) = (source / "dist").iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    with tarfile.open(built("sdist", source)) as sdist:
        sdist.extractall(source / "unpacked", filter="data")
    return built("wheel", source / "unpacked" / f"rft_data-{__version__}")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the wheel, and what the tests' own has but the checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (purelib / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", f"--python={folder / 'bin' / 'python'}", "install", "--quiet"]
    run([*pip, "--no-deps", "--no-index", "--ignore-installed", wheel], folder)
    return folder / "bin"


def test_the_wheel_holds_all_that_is_shipped(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*") if file.is_file())
    shipped = {str(file.relative_to(ROOT)) for file in files if file.suffix != ".pyc"}
    typed = {f"{package}/py.typed" for package in PACKAGES}
    assert {*typed, "recipes/samples/test.jsonl", "recipes/skeletons/grpo.yaml"} <= shipped
    assert shipped - held == set()
    docs = f"rft_data-{__version__}.data/data/share/doc/rft-data"
    pages = {f"{docs}/docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert {f"{docs}/README.md", *pages} <= held
    assert not {name for name in held if name.startswith(("tests", "benchmarks", "docs"))}


def test_an_installed_wheel_is_used_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    rft, python = installed / "rft", installed / "python"
    code = f"import {', '.join(PACKAGES)}, sys; print(rft_data.__file__, sys.prefix)"
    place, prefix = run([python, "-c", code], tmp_path).split()
    assert place.startswith(prefix)
    assert run([rft, "--version"], tmp_path) == f"rft-data {__version__}\n"
    listed = run([rft, "recipe", "list"], tmp_path)
    assert [one.name for one in shipped_recipes() if one.name not in listed] == []
    findings = json.loads(run([rft, "doctor", "--json"], tmp_path))
    (own,) = (one for one in findings if one["about"] == "rft-data")
    assert (own["health"], own["found"].partition(";")[0]) == ("ok", __version__)
    run([rft, "recipe", "copy", "quickstart"], tmp_path)
    assert "quickstart.yaml: valid" in run([rft, "recipe", "validate", "quickstart.yaml"], tmp_path)
    assert (Path(prefix) / "share" / "doc" / "rft-data" / "docs" / "own.md").is_file()


def test_shipped_recipes_have_the_same_problems_as_in_a_checkout(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None for most; models, data and settings that a recipe leaves to its user for others."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    here = {one.name: problems(one.path) for one in shipped_recipes()}
    assert here["quickstart"] == 0
    empty = tmp_path / "empty"
    empty.mkdir()
    assert json.loads(run([installed / "python", "-c", ALL_PROBLEMS], empty)) == here


def problems(path: Path) -> int:
    """How many problems `rft recipe validate` finds."""
    try:
        validate_recipe(path)
    except RecipeError as err:
        return str(err).count("\n")
    return 0


ALL_PROBLEMS = f"""
import json
from pathlib import Path
from rft_data.core.errors import RecipeError
from rft_data.recipe.load import validate_recipe
from rft_data.recipe.shipped import shipped_recipes
{inspect.getsource(problems)}
print(json.dumps({{one.name: problems(one.path) for one in shipped_recipes()}}))
"""
