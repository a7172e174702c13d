"""A page that several people have open: each speaks as the one whose link it was, and as nobody else."""

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.web.app import make_app
from rft_data.web.guard import Guard
from rft_data.web.people import Person, people
from rft_data.web.subjects import Subjects
from tests.rft_data.run.rejudge.explored import explore

TOKENS = {"ann": "of-ann", "bob": "of-bob"}
_CURATING = ("correct", "quarantine", "readmit", "retire", "bring_back")


@pytest.fixture
def subjects(tmp_path: Path) -> Iterator[Subjects]:
    with Buffer(tmp_path / "buffer") as buffer:
        explore(buffer, [[1.0, 0.0], [0.0, 1.0]])
    with Subjects([str(tmp_path / "buffer")]) as found:
        yield found


@pytest.fixture
def visitors(subjects: Subjects) -> dict[str, TestClient]:
    """Ann, who decides, and Bob, who rates; each came by a link of his own."""
    known = {TOKENS["ann"]: Person("ann"), TOKENS["bob"]: Person("bob", curates=False)}
    app = Guard(
        make_app(subjects, None, "secret"), token=TOKENS["ann"], hosts=frozenset(("127.0.0.1",)), people=known
    )
    found = {}
    for name, token in TOKENS.items():
        found[name] = TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)
        assert found[name].get(f"/?token={token}").status_code == 303
    return found


def form_token(page: TestClient) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page.get("/s/buffer/rows/0").text)
    assert found is not None
    return found[1]


def said(page: TestClient, token: str, act: str, text: str = "") -> int:
    form = {"act": act, "text": text, "form_token": token}
    return page.post("/s/buffer/rows/0/word", data=form).status_code


@pytest.mark.slow
def test_each_speaks_for_himself_whatever_he_sends(
    visitors: dict[str, TestClient], subjects: Subjects
) -> None:
    ann, bob = visitors["ann"], visitors["bob"]
    tokens = {name: form_token(page) for name, page in visitors.items()}
    assert tokens["ann"] != tokens["bob"]
    assert said(bob, tokens["ann"], "up") == 403, "a form of hers"
    assert said(bob, tokens["bob"], "up") == 303
    extra = {"act": "down", "form_token": tokens["bob"], "author": "ann"}
    assert bob.post("/s/buffer/rows/0/word?author=ann", data=extra).status_code in (303, 422)
    assert said(ann, tokens["ann"], "up") == 303
    authors = subjects.buffer("buffer").read("feedback").column("author").to_pylist()
    assert authors[-1] == "ann"
    assert set(authors[:-1]) == {"bob"}
    assert "Store as bob" in bob.get("/s/buffer/rows/0").text
    assert "Store as ann" in ann.get("/s/buffer/rows/0").text
    assert ann.get("/", headers={"cookie": "rft_view=of-bob"}).status_code in (200, 401)


@pytest.mark.slow
def test_who_rates_does_not_decide_what_is_trained_on(
    visitors: dict[str, TestClient], subjects: Subjects
) -> None:
    token = form_token(visitors["bob"])
    for act in _CURATING:
        assert said(visitors["bob"], token, act, "better") == 403, act
    task = {"taskset": "arith", "task_id": "t0", "act": "retire", "form_token": token}
    assert visitors["bob"].post("/s/buffer/task", data=task).status_code == 403
    assert visitors["bob"].post("/s/buffer/try/x/readmit", data={"form_token": token}).status_code == 403
    assert subjects.buffer("buffer").counts()["feedback"] == 0
    assert said(visitors["bob"], token, "tag", "odd") == 303
    text = html.unescape(visitors["bob"].get("/s/buffer/rows/0").text)
    assert "Retire its task" not in text
    assert "Correct the answer" not in text
    assert "Retire its task" in visitors["ann"].get("/s/buffer/rows/0").text
    assert said(visitors["ann"], form_token(visitors["ann"]), "quarantine") == 303


@pytest.mark.slow
def test_two_people_do_not_get_the_same_pair(visitors: dict[str, TestClient]) -> None:
    texts = [page.get("/s/buffer/choose").text for page in visitors.values()]
    pairs = [frozenset(re.findall(r'name="(?:left|right)" value="([^"]+)"', text)) for text in texts]
    assert len(pairs[0]) == 2
    assert pairs[0].isdisjoint(pairs[1])


def test_a_name_is_given_once() -> None:
    assert people(["ann"], ["bob"]) == [Person("ann"), Person("bob", curates=False)]
    for authors, raters in ((["ann", "ann"], []), (["ann"], ["ann"]), ([" "], []), (["a\nb"], [])):
        with pytest.raises(RecipeError, match="a name of their own"):
            people(authors, raters)
