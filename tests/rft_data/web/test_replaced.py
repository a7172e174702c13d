"""A buffer that another takes the place of while the page is open."""

import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.web.app import make_app
from rft_data.web.subjects import Subjects
from tests.rft_data.conftest import make_experience


def stored(folder: Path, text: str) -> None:
    with Buffer(folder) as buffer:
        buffer.append([make_experience(0, completion_text=text)])


@pytest.mark.slow
def test_another_buffer_at_the_same_place_is_said_once_and_opened(tmp_path: Path) -> None:
    folder = tmp_path / "buffer"
    stored(folder, "of the first")
    with Subjects([str(folder)]) as subjects:
        page = TestClient(make_app(subjects, None, "f"))
        assert "of the first" in page.get("/s/buffer/experiences").text
        with Buffer(folder) as owner:  # an owner that goes on writing is no other buffer
            owner.append([make_experience(1, completion_text="of the first, too")])
        assert "of the first, too" in page.get("/s/buffer/experiences").text
        shutil.rmtree(folder)
        gone = page.get("/s/buffer/experiences")
        assert gone.status_code == 409
        assert "another one took its place" in gone.text
        assert page.get("/s/buffer/experiences").status_code == 404
        stored(folder, "of the second")
        assert "of the second" in page.get("/s/buffer/experiences").text
        shutil.rmtree(folder)
        stored(folder, "of the third")
        assert page.get("/s/buffer/experiences").status_code == 409
        assert "of the third" in page.get("/s/buffer/experiences").text
