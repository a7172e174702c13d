"""Dockerfiles, their install script and the workflow: what they name exists, and linters find nothing."""

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
INSTALL = ROOT / "docker" / "install.sh"


def sources(dockerfile: Path) -> list[str]:
    """What a Dockerfile copies from the checkout."""
    lines = re.findall(r"^COPY (.+)$", dockerfile.read_text(), re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_a_dockerfile_copies_what_exists_and_the_context_lets_it(dockerfile: Path) -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert len(sources(dockerfile)) > 8
    assert [name for name in sources(dockerfile) if not (ROOT / name).exists() or name not in kept] == []


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_a_container_has_a_pinned_base_and_no_root(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    (base,) = re.findall(r"^FROM (\S+)$", text, re.MULTILINE)
    assert fnmatch(base, "*:*[0-9].[0-9]*.[0-9]*-*")
    assert text.index("\nUSER ") > text.rindex("\nRUN ")
    assert re.search(r"^USER [1-9]\d*$", text, re.MULTILINE)


def test_a_container_installs_what_the_wheel_is_built_from() -> None:
    copied = {frozenset(sources(dockerfile)) for dockerfile in DOCKERFILES}
    assert len(copied) == 1
    assert {"pyproject.toml", "LICENSE", "README.md", "docs", "rft_data", "recipes"} <= copied.pop()


@pytest.mark.parametrize("arguments", [[], ["cpu"], ["gpu", "there"]])
def test_the_install_script_says_what_it_wants(arguments: list[str]) -> None:
    done = subprocess.run(["bash", INSTALL, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "wanted: docker/install.sh cpu|cuda FOLDER" in done.stderr


@pytest.mark.parametrize(
    ("linter", "files"),
    [("hadolint", DOCKERFILES), ("shellcheck", [INSTALL, ROOT / ".ci" / "run"])],
)
def test_linters_find_nothing(linter: str, files: list[Path]) -> None:
    program = Path(sys.executable).with_name(linter)
    if not program.is_file():
        pytest.skip(f"no {linter}, which the extra 'dev' brings")
    done = subprocess.run([program, *files], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("name", "command"), [("ci", "bash .ci/run"), ("weekly", "${{ matrix.as }} make ${{ matrix.target }}")]
)
def test_a_workflow_runs_what_is_run_here_with_actions_of_a_known_major_version(
    name: str, command: str
) -> None:
    workflow = YAML(typ="safe").load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [command]
    assert (ROOT / ".ci" / "run").is_file()
    targets = job.get("strategy", {"matrix": {"target": []}})["matrix"]["target"]
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in used)
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.slow
def test_every_week_runs_are_broken_off_everywhere_and_nodes_are_cut_and_lost() -> None:
    workflow = YAML(typ="safe").load((ROOT / ".github" / "workflows" / "weekly.yml").read_text())
    matrix = workflow["jobs"]["make"]["strategy"]["matrix"]
    assert {"breaks", "nodes"} <= set(matrix["target"])
    [alone] = matrix["include"]
    assert (alone["target"], alone["as"].split()[0]) == ("nodes", "sudo")
    shown = {target: _recipe(target) for target in ("breaks", "nodes")}
    for file in ("tests/rft_data/loop/test_broken_runs.py", "tests/rft_data/run/test_exact_resume.py"):
        assert file in shown["breaks"]
        assert (ROOT / file).is_file()
    assert "RFT_BREAKS=all" in shown["breaks"]
    assert "RFT_TEST_NODES=1 RFT_TEST_CUT_S=60" in shown["nodes"]
    asking = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if re.search("RFT_TEST_NODES|nodes_of", file.read_text()) and file != Path(__file__)
    }
    assert asking <= set(re.findall(r"tests/[\w/.]+", shown["nodes"]))


def _recipe(target: str) -> str:
    """The commands of a target of the Makefile."""
    rule = (ROOT / "Makefile").read_text().split(f"\n{target}:", 1)[1]
    return rule.split("\n\n", 1)[0]
