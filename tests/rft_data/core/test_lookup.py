"""Names of parts: built in, by import path, and by an import path that an older version's recipes have."""

from pathlib import Path

import pytest

from rft_data.core.errors import MissingExtraError, RecipeError, UnknownComponentError
from rft_data.core.lookup import MOVED, OWN_CODE, built_in, is_import_path, load, lookup, own_code_from

TABLE = {"one": 1, "two": 2}


def test_lookup_takes_a_built_in_or_imports_a_path() -> None:
    assert lookup("one", TABLE, "number") == 1
    assert lookup("math:pi", TABLE, "number") == 3.141592653589793
    with pytest.raises(
        UnknownComponentError, match=r"number 'oen' is not known; did you mean 'one'.*Your own:"
    ):
        lookup("oen", TABLE, "number")
    with pytest.raises(UnknownComponentError, match="module 'math' has no 'pie'; did you mean 'pi'"):
        lookup("math:pie", TABLE, "number")


def test_built_in_imports_nothing() -> None:
    assert built_in("two", TABLE, "number") == 2
    with pytest.raises(UnknownComponentError, match=r"number 'math:pi' is not known; Built in: one, two\.$"):
        built_in("math:pi", TABLE, "number")


@pytest.mark.parametrize("old", MOVED)
def test_import_path_of_an_older_recipe_still_leads_to_its_function(old: str) -> None:
    assert load(old, "synthesis") is load(MOVED[old], "synthesis")


def test_a_file_is_executed_once_and_its_classes_keep_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    code = "from dataclasses import dataclass\n\n@dataclass\nclass Part:\n    size: int = 3\n"
    (tmp_path / "parts" / "mine.py").write_text(code)
    part = lookup("parts/mine.py:Part", TABLE, "number")
    assert part(2) == load(str(tmp_path / "parts" / "mine.py:Part"), "number")(2)
    with pytest.raises(UnknownComponentError, match="has no 'Prat'; did you mean 'Part'"):
        load("parts/mine.py:Prat", "number")
    with pytest.raises(
        UnknownComponentError, match=f"number 'mine.py:Part': there is no file {tmp_path}/mine.py"
    ):
        load("mine.py:Part", "number")
    (tmp_path / "parts" / "broken.py").write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(
            RecipeError,
            match=r"number 'parts/broken\.py:Part' cannot be imported: \S+/broken\.py:1: ZeroDivisionError",
        ):
            load("parts/broken.py:Part", "number")
    (tmp_path / "parts" / "broken.py").write_text("x = 1\nx = = 2")
    with pytest.raises(RecipeError, match=r"broken\.py:2: SyntaxError"):
        load("parts/broken.py:Part", "number")
    assert is_import_path("parts/mine.py:Part")
    assert not is_import_path("parts/mine:Part")


def test_a_file_is_found_in_the_recipes_folder_where_the_working_directory_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN_CODE, "")
    beside, here = tmp_path / "recipes", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
    (beside / "only.py").write_text("WHERE = 'beside'")
    for folder in (beside, here):
        (folder / "both.py").write_text(f"WHERE = '{folder.name}'")
    monkeypatch.chdir(here)
    own_code_from(beside)
    assert load("./only.py:WHERE", "word") == "beside"
    assert load("both.py:WHERE", "word") == "here"
    with pytest.raises(UnknownComponentError, match=f"no file {here}/gone.py; .* the recipe's folder"):
        load("./gone.py:WHERE", "word")


def test_a_file_that_lacks_the_package_of_an_extra_is_told_which(tmp_path: Path) -> None:
    file = tmp_path / "world.py"
    file.write_text("raise ModuleNotFoundError(\"No module named 'openenv.core'\", name='openenv.core')\n")
    with pytest.raises(MissingExtraError, match=r"world '.*'openenv\.core'.*'rft-data\[openenv\]'"):
        load(f"{file}:World", "world")
    file.write_text("raise ModuleNotFoundError(\"No module named 'other'\", name='other')\n")
    with pytest.raises(RecipeError, match=r"world\.py:1: ModuleNotFoundError: No module named 'other'"):
        load(f"{file}:World", "world")
