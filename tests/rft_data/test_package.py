"""What `import rft_data` gives: a list of names, each loaded when it is first used, and nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rft_data
from docs.pages.python import names, page

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "vllm", "trl", "ray", "data_juicer", "transformers", "matplotlib", "datasets", "lancedb"}


def loaded_after(code: str) -> set[str]:
    """Modules that a fresh process has loaded after this code."""
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(done.stdout.split())


def for_type_checkers() -> dict[str, object]:
    """What the `if TYPE_CHECKING` block of the package imports."""
    tree = ast.parse(Path(rft_data.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        module = __import__(str(node.module), fromlist=["*"])
        imported |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    return imported


def test_importing_the_package_loads_no_other_module_of_ours_or_of_others() -> None:
    loaded = loaded_after("import rft_data")
    ours = {name for name in loaded if name.split(".")[0] in {"rft_data", "ops", "trainers", "explorers"}}
    assert ours == {"rft_data", "rft_data.core", "rft_data.core.version"}
    assert not loaded & {*HEAVY, "pyarrow", "numpy", "pydantic"}


@pytest.mark.slow
def test_touching_every_name_loads_nothing_heavy() -> None:
    loaded = loaded_after("import rft_data\nfor name in rft_data.__all__: getattr(rft_data, name)")
    assert "rft_data.run.start" in loaded
    assert not loaded & HEAVY


@pytest.mark.slow
def test_a_buffer_is_made_written_read_and_compacted_without_lancedb(tmp_path: Path) -> None:
    loaded = loaded_after(
        "from rft_data.buffer import Buffer\n"
        "from tests.rft_data.conftest import make_experience\n"
        f"for part in (range(4), range(2, 6)):\n  with Buffer({str(tmp_path / 'buffer')!r}) as buffer:\n"
        "    buffer.append([make_experience(i) for i in part])\n"
        "    assert buffer.counts()['experiences'] == len(buffer.read('experiences')) == part[-1] + 1\n"
        "    assert buffer.tail('experiences', 2).num_rows == 2\n"
        "    buffer.compact()"
    )
    assert "lance" in loaded
    assert not loaded & HEAVY


def test_the_list_the_places_the_type_checkers_block_and_the_page_name_the_same() -> None:
    listed = set(rft_data.__all__) - {"__version__"}
    assert listed == set(rft_data._PLACES)
    assert listed == set(names())
    assert for_type_checkers() == {name: getattr(rft_data, name) for name in listed}
    assert listed < set(dir(rft_data))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rft_data' has no attribute 'Bufer'"):
        _ = rft_data.Bufer


def test_page_in_docs_is_the_one_the_docstrings_make() -> None:
    written = (ROOT / "docs" / "python.md").read_text()
    assert written == page(), "run `python -m docs.pages.python > docs/python.md`"


def test_files_of_recipes_that_users_copy_import_rft_data_by_its_front_door() -> None:
    deep = [
        f"{file.relative_to(ROOT)}: {node.module}"
        for file in sorted((ROOT / "recipes").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rft_data.")
    ]
    assert deep == []
