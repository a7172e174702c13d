"""The tests that the pages name as proofs exist, and every fault has one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_tests_named_as_proofs_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"`(test_\w+)`", page.read_text())}
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^(?:async )?def (test_\w+)", code, re.MULTILINE))
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(named) > 50
    assert sorted(named - defined - files) == []


def test_every_fault_names_its_proof() -> None:
    rows = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| ")]
    faults = [line for line in rows if not line.startswith(("| fault |", "|---"))]
    unproved = [line.split("|")[1].strip() for line in faults if "`test_" not in line.split("|")[-2]]
    assert unproved == []
