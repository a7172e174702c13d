"""Names of parts: built in, by import path, and by an import path that an older version's recipes have."""

import pytest

from rft_data.core.errors import UnknownComponentError
from rft_data.core.lookup import MOVED, built_in, load, lookup

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
