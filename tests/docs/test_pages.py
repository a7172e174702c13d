"""Pages of docs/: all are in the index, their links lead somewhere, and the commands in them exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import typer
from pydantic import BaseModel
from ruamel.yaml import YAML

from docs.pages.recipe import places
from rft_data.cli.app import app
from rft_data.recipe.layers import EXTENDS
from rft_data.recipe.modes import MODES

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
OURS = {"rft_data", "ops", "explorers", "trainers"}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """File and anchor of every link that is not to another site."""
    for target in _LINK.findall(_FENCE.sub("", page.read_text())):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    kept = ("".join(sign for sign in title.lower() if sign.isalnum() or sign in " -_") for title in headings)
    return {title.replace(" ", "-") for title in kept}


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command of ours: lines of code blocks without their comments, and inline code."""
    text = page.read_text()
    blocks = "".join(_FENCE.findall(text)).replace("\\\n", " ")
    inline = re.findall(r"`(rft [a-z][^`]*)`", _FENCE.sub("", text))
    for line in [*re.findall(r"^\s*(rft .*)$", blocks, re.MULTILINE), *inline]:
        yield shlex.split(" ".join(line.split()), comments=True)[1:]


def known(words: list[str]) -> list[str]:
    """What of these words the command line does not know: a command, or an option of it."""
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        names, words = words[0].split("|"), words[1:]
        if unknown := [name for name in names if name not in command.commands]:
            return unknown
        command = command.commands[names[0]]
    options = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    given = {word.strip("[]").partition("=")[0] for word in words if word.lstrip("[").startswith("-")}
    return sorted(given - options)


def imports(page: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every import from our packages in a page's Python blocks."""
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in OURS:
                yield from ((str(node.module), alias.name) for alias in node.names)


def test_every_page_is_in_the_index_and_the_readme_leads_there() -> None:
    listed = {path for path, _ in links(ROOT / "docs" / "index.md")}
    assert {page for page in DOCS if page.name != "index.md"} <= listed
    assert ROOT / "docs" / "index.md" in {path for path, _ in links(ROOT / "README.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = [
        f"{path.name}#{anchor}"
        for path, anchor in links(page)
        if not path.exists() or (anchor and anchor not in anchors(path))
    ]
    assert not broken


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    unknown = {" ".join(words): missing for words in commands(page) if (missing := known(words))}
    assert not unknown


def unknown_keys(tree: Any, sections: Sequence[type[BaseModel]]) -> list[str]:
    """Keys in a fragment of a recipe that none of these sections has, here or further in."""
    if isinstance(tree, list):
        return [key for part in tree for key in unknown_keys(part, sections)]
    if not isinstance(tree, dict) or not sections:
        return []
    unknown = []
    for written, value in tree.items():
        key = str(written).removeprefix("~")
        if key == EXTENDS:
            continue
        if key.isdecimal():  # an entry of a list
            unknown += unknown_keys(value, sections)
            continue
        fields = [s.model_fields[key] for s in sections if key in s.model_fields]
        inside = [part for field in fields for part in sections_in(field.annotation)]
        named = any(get_origin(field.annotation) is dict for field in fields)  # by names of the user's
        below = list(value.values()) if named and isinstance(value, dict) else value
        unknown += unknown_keys(below, inside) if fields else [key]
    return unknown


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a value of this type may hold, also in a list or a map."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for argument in get_args(annotation) for part in sections_in(argument)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipe_fragments_have_keys_that_recipes_have(page: Path) -> None:
    blocks = re.findall(r"^ *```yaml\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    sections = [*MODES.values(), *places()]
    for block in blocks:
        tree = YAML(typ="safe").load(block.replace("{...}", "{}").replace("[...]", "[]"))
        assert not unknown_keys(tree, sections), block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_parse_and_import_what_exists(page: Path) -> None:
    missing = []
    for module, name in imports(page):
        found = importlib.import_module(module)
        if not hasattr(found, name) and importlib.util.find_spec(f"{module}.{name}") is None:
            missing.append(f"{module}.{name}")
    assert not missing


def test_the_page_of_architecture_shows_the_contract_of_the_folders() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (wanted,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["rft_data"]]
    (block,) = [b for b in _FENCE.findall((ROOT / "docs/architecture.md").read_text()) if "\ncli " in b]
    assert [re.split(r"  +", line)[0] for line in block.splitlines()[1:-1]] == wanted


def test_glossary_is_sorted() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(words) > 40
    assert words == sorted(words)


def test_modules_named_by_path_exist() -> None:
    named = {
        (page.name, path)
        for page in PAGES
        for path in re.findall(
            r"`((?:rft_data|ops|explorers|trainers|tests|recipes)/[\w/]+\.\w+)", page.read_text()
        )
    }
    assert not sorted((name, path) for name, path in named if not (ROOT / path).exists())
