"""What an import takes for not installed, and what is as before after it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rft_data.core.absent import absent


def test_a_package_is_hidden_for_the_block_and_there_again_after_it() -> None:
    assert "wave" not in sys.modules, "take another module that nothing imports"
    with pytest.raises(ImportError), absent("wave"):  # noqa: PT012
        assert importlib.util.find_spec("wave") is None
        importlib.import_module("wave")
    assert importlib.import_module("wave").__name__ == "wave"


def test_a_package_that_is_imported_already_stays() -> None:
    with absent("json"):
        assert sys.modules["json"] is json


@pytest.mark.slow
def test_no_role_loads_what_only_assisted_generation_needs() -> None:
    pytest.importorskip("sklearn")
    program = (
        "import sys, trainers.models.weights; print([one in sys.modules for one in ('sklearn', 'vllm')])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert found.stdout.split("\n")[-2] == "[False, False]"
