"""The picture in docs/architecture.md against the imports."""

import ast
import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
AT_MOST = 6
"""Files from the command to the loop."""


def imported(path: Path) -> set[str]:
    """Every module that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_the_way_from_rft_run_to_the_loop_is_as_drawn() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split("## From rft run to the first step")[1]
    files = re.findall(r"^ *(rft_data/\S+\.py)  ", section.split("```")[1], re.M)
    assert files[0] == "rft_data/cli/app.py"
    assert files[-1] == "rft_data/loop/online.py"
    assert len(files) <= AT_MOST
    for opened, following in pairwise(files):
        module = following.removesuffix(".py").replace("/", ".")
        assert module in imported(ROOT / opened), f"{opened} does not import {module}"


def test_files_that_the_page_names_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", page))
    assert named
    missing = {name for name in named if not any((ROOT / top / name).is_file() for top in ("", "rft_data"))}
    assert not missing
