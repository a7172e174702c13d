"""Every block of the pages is checked by what its language means (tests/docs/blocks.py)."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import fragments, shell
from tests.docs.blocks import LANGUAGES, PAGES, ROOT, Block, blocks, checked

OURS = {"rft_data", "ops", "explorers", "trainers"}


def test_every_block_names_its_language_and_few_are_exempt(capsys: pytest.CaptureFixture[str]) -> None:
    found = [one for page in PAGES for one in blocks(page)]
    unknown = [f"{one}: '{one.language}'" for one in found if one.language not in LANGUAGES]
    assert not unknown, f"name one of {LANGUAGES}"
    exempt = [one for one in found if one.why_not]
    assert {one.language for one in exempt} <= {"python"}, (
        "why a command is not run: <!-- not run here: ... -->"
    )
    with capsys.disabled():
        counts = dict(Counter(one.language for one in found))
        sys.stdout.write(f"\nblocks: {counts}; exempt: {len(exempt)} {[str(one) for one in exempt]}\n")
    assert len(exempt) <= 3
    fences = sum(len(re.findall(r"^ *```", page.read_text(), re.MULTILINE)) for page in PAGES)
    assert fences == 2 * len(found)


@pytest.mark.slow
def test_commands_are_commands_that_the_parser_takes() -> None:
    wrong = [
        f"{block}: {' '.join(words)}: {found}"
        for block in checked("console")
        for words in shell.commands(block.body)
        if (found := shell.wrong(words))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_text_are_commands_that_the_parser_takes(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    wrong = [
        f"{' '.join(words)}: {found}"
        for one in re.findall(r"`(rft [a-z][^`]*)`", text)
        for words in shell.commands(one)
        if (found := shell.named(words[1:]))
    ]
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("block", checked("yaml"), ids=str)
def test_recipes_and_parts_of_recipes_are_valid(block: Block, tmp_path: Path) -> None:
    assert fragments.mistakes(fragments.shown(block.body), tmp_path) == []


@pytest.mark.parametrize("block", checked("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    try:
        json.loads(block.body)
    except json.JSONDecodeError:
        assert [json.loads(line) for line in block.body.splitlines()]


FOREIGN = {"agentscope", "agents", "smolagents"}
"""Frameworks that pages name and that are no dependency; where they are installed, they have tests."""


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of every import; the name is empty where the module itself is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


@pytest.mark.parametrize("block", checked("python"), ids=str)
def test_python_compiles_and_imports_what_exists(block: Block) -> None:
    tree = ast.parse(block.body, str(block))
    compile(tree, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    missing = []
    for module, name in imports(tree):
        if module.split(".")[0] in OURS and name:
            found = importlib.import_module(module)
            if not hasattr(found, name) and importlib.util.find_spec(f"{module}.{name}") is None:
                missing.append(f"{module}.{name}")
        elif module.split(".")[0] not in FOREIGN and importlib.util.find_spec(module.split(".")[0]) is None:
            missing.append(module)
    assert not missing


_RUN = re.compile(r'\b(?:run_block|python_blocks?)\(\s*"([\w.]+)"(?:,\s*"([^"]+)")?')
"""A test that runs a block, or all of a page."""


@pytest.mark.slow
def test_every_block_of_python_is_run_by_a_test_or_says_why_not() -> None:
    calls = [call for path in (ROOT / "tests").rglob("test_*.py") for call in _RUN.findall(path.read_text())]
    assert len(calls) > 20
    not_run = [
        str(block)
        for block in checked("python")
        if not block.why_not
        and not any(page == block.page.name and text in block.body for page, text in calls)
    ]
    assert not_run == [], "run them by tests.docs.blocks.run_block, or say why not: <!-- not run: reason -->"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rft", "recipe", "validat", "R"], "no command 'validat'"),
        (["rft", "run", "R", "--fresch"], "No such option: --fresch"),
        (["rft", "buffer", "import", "B"], "Missing argument"),
        (["rft", "buffer", "head", "B", "-n", "many"], "valid integer"),
        (["rft", "buffer", "head|hed", "B"], "no command 'hed'"),
        (["make", "quickstrat"], "no target quickstrat"),
        (["pip", "install", "rft-data[trian]"], "no extra \\['trian'\\]"),
        (["python", "-m", "docs.pages.recip"], "no module docs.pages.recip"),
        (["rft", "run", "recipes/quickstrat.yaml"], "no file recipes/quickstrat.yaml"),
        (["rtf", "run"], "'rtf' is no program"),
    ],
)
def test_a_wrong_command_is_found(words: list[str], message: str) -> None:
    assert re.search(message, shell.wrong(words) or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("explorer: {group_sise: 4}", "group_sise"),
        ("explorer: {group_size: many}", "group_size"),
        ("stages: [{algorithm: gpro}]", "gpro"),
        ("workflow: {use: single_trun}", "single_trun"),
        ("mode: eval\nmodels: x", "models"),
        ("experience_ops: [{reward_rang_filter: {}}]", "reward_rang_filter"),
    ],
)
def test_a_wrong_part_of_a_recipe_is_found(part: str, message: str, tmp_path: Path) -> None:
    assert any(message in line for line in fragments.mistakes(fragments.shown(part), tmp_path))
