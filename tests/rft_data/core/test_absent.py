"""What an import takes for not installed, and what is as before after it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rft_data.core.absent import absent
from tests.template import FORK


def test_a_package_is_hidden_for_the_block_and_there_again_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_for_test_absent.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError), absent("only_for_test_absent"):  # noqa: PT012
        assert importlib.util.find_spec("only_for_test_absent") is None
        importlib.import_module("only_for_test_absent")
    assert importlib.import_module("only_for_test_absent").__name__ == "only_for_test_absent"
    del sys.modules["only_for_test_absent"]


def test_a_package_that_is_imported_already_stays() -> None:
    with absent("json"):
        assert sys.modules["json"] is json


@pytest.mark.heavy
def test_no_role_loads_what_only_assisted_generation_needs() -> None:
    pytest.importorskip("sklearn")
    program = (
        f"{FORK}import sys, explorers.role, trainers.role\n"
        "print([one in sys.modules for one in ('sklearn', 'vllm')])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert found.stdout.split("\n")[-2] == "[False, False]"
