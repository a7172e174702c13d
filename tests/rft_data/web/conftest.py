"""A run that 0.5.0 left behind, and the page over it."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.web.app import make_app
from rft_data.web.subjects import Subjects
from tests.rft_data.web.visitor import ARCHIVE, browser, served, visitor  # noqa: F401

FORM_TOKEN = "of-the-form"  # noqa: S105 - of the tests


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run/`: three steps of an online run; `library/`: a buffer alone."""
    folder = tmp_path_factory.mktemp("page")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def page(runs: Path) -> Iterator[TestClient]:
    with Subjects([str(runs / name) for name in ("run", "preferred", "library")]) as subjects:
        yield TestClient(make_app(subjects, "me", FORM_TOKEN), follow_redirects=False)
