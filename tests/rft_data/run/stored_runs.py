"""Runs on an object store, and machines with disks of their own, for tests."""

from pathlib import Path

import pytest

from rft_data.core.scratch import SCRATCH


@pytest.fixture
def url(bucket: str) -> str:
    return f"{bucket}/runs/small"


class Node:
    """A machine with a disk of its own."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root, self._patch = root, patch

    def go(self, name: str) -> None:
        """Be this machine from now on."""
        self._patch.setenv(SCRATCH, str(self._root / name))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    here = Node(tmp_path, monkeypatch)
    here.go("a")
    return here


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def files(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file() and "/." not in str(path))
    return {str(path.relative_to(folder)): path.read_text() for path in found}
