"""One small world for the pages: the files of docs/walks.md, and the first walk's run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_walks import FILES, rft


@pytest.fixture(scope="session")
def _played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished run `shop`, made once for each worker."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, text in FILES.items():
            Path(name).write_text(text)
        rft("run", "shop.yaml")
    return folder


@pytest.fixture
def world(_played: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder, in which the test then works; tests add to it, and none may count what is in it."""
    monkeypatch.chdir(_played)
    return _played
