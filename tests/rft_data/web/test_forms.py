"""Forms of other pages, and of pages that only show: every route that acts refuses them, writing nothing."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.web.app import make_app
from rft_data.web.subjects import Subjects
from tests.rft_data.conftest import make_experience
from tests.rft_data.web.conftest import FORM_TOKEN

LEFT, RIGHT = (make_experience(place, group_id="g").experience_id for place in range(2))
FORMS: dict[str, dict[str, str]] = {
    "/s/{key}/choose": {"left": LEFT, "right": RIGHT, "answer": "a"},
    "/s/{key}/choose/undo": {},
    "/s/{key}/rows/{seq}/say": {"value": "1"},
    "/s/{key}/rows/{seq}/word": {"act": "up"},
    "/s/{key}/said/back": {"experience": LEFT, "about": "thumb"},
    "/s/{key}/task": {"taskset": "t", "task_id": "0", "act": "retire"},
    "/s/{key}/try": {"text": "- reward_variance_filter: {}"},
    "/s/{key}/try/{number}/readmit": {},
    "/recipe": {"text": "extends: quickstart"},
    "/recipe/run": {"text": "extends: quickstart"},
}
"""What each route that acts is sent, without the token."""
SPEAKS = [path for path in FORMS if path.startswith("/s/") and not path.endswith("/try")]
FORGED: tuple[dict[str, str], ...] = (
    {},
    {"form_token": ""},
    {"form_token": FORM_TOKEN[:-1]},
    {"form_token": FORM_TOKEN + "x"},
)


@pytest.fixture
def subjects(tmp_path: Path) -> Iterator[Subjects]:
    """A run with a group of two, of which nothing was said."""
    (tmp_path / "runs" / "run").mkdir(parents=True)
    (tmp_path / "runs" / "run" / "recipe.json").write_text(json.dumps({"name": "run", "mode": "online"}))
    with Buffer(tmp_path / "runs" / "run" / "buffer") as buffer:
        buffer.append([make_experience(place, group_id="g") for place in range(2)])
    with Subjects([str(tmp_path / "runs" / "run")]) as found:
        yield found


def page(subjects: Subjects, runs: Path, author: str | None) -> TestClient:
    return TestClient(make_app(subjects, author, FORM_TOKEN, runs), follow_redirects=False)


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file."""
    return {
        os.path.join(root, name): (facts.st_size, facts.st_mtime_ns)
        for root, _, names in os.walk(folder)
        for name in names
        for facts in [os.stat(os.path.join(root, name))]
    }


def address(path: str) -> str:
    return path.format(key="run", seq=0, number="x")


@pytest.mark.slow
def test_every_route_that_acts_is_tried_here(subjects: Subjects, tmp_path: Path) -> None:
    routes = make_app(subjects, "me", FORM_TOKEN, tmp_path).routes
    acting = {route.path for route in routes if isinstance(route, APIRoute) and route.methods != {"GET"}}
    assert acting == FORMS.keys()


@pytest.mark.slow
def test_a_form_without_the_token_of_this_page_does_nothing(subjects: Subjects, tmp_path: Path) -> None:
    sender = page(subjects, tmp_path / "runs", "me")
    subjects.buffer("run")
    before = files(tmp_path)
    for path, form in FORMS.items():
        for token in FORGED:
            answer = sender.post(address(path), data={**form, **token})
            assert answer.status_code == (403 if token.get("form_token") else 422), (path, token, answer.text)
    assert files(tmp_path) == before


@pytest.mark.slow
def test_a_page_that_only_shows_stores_no_word(subjects: Subjects, tmp_path: Path) -> None:
    sender = page(subjects, tmp_path / "runs", None)
    subjects.buffer("run")
    before = files(tmp_path)
    for path in SPEAKS:
        answer = sender.post(address(path), data={**FORMS[path], "form_token": FORM_TOKEN})
        assert (answer.status_code, "this page only shows" in answer.text) == (403, True), (path, answer.text)
    assert files(tmp_path) == before


@pytest.mark.slow
def test_the_same_forms_with_the_token_are_stored(subjects: Subjects, tmp_path: Path) -> None:
    sender = page(subjects, tmp_path / "runs", "me")
    for path in ("/s/{key}/rows/{seq}/word", "/s/{key}/said/back", "/s/{key}/rows/{seq}/say"):
        before = subjects.buffer("run").counts()["feedback"]
        answer = sender.post(address(path), data={**FORMS[path], "form_token": FORM_TOKEN})
        assert answer.status_code == 303, answer.text
        assert subjects.buffer("run").counts()["feedback"] == before + 1
