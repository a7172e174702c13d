import json
import tarfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def stored_recipe() -> dict[str, object]:
    """The recipe of an online run, as the run stored it."""
    archive = Path(__file__).parents[3] / "data" / "written_by_0_5_0.tar.xz"
    with tarfile.open(archive) as files:
        member = files.extractfile("./run/recipe.json")
        assert member is not None
        found: dict[str, object] = json.load(member)
        return found
