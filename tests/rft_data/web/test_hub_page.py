"""The page over a hub: it shows what the page over the run's folder shows, and writes as its token may."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.words import HubRole
from rft_data.placement.hub.access import make_token
from rft_data.placement.hub.client import HUB_TOKEN
from rft_data.placement.hub.run_files import RunFolders
from rft_data.placement.hub.server import HubServer
from rft_data.run.record import SHOWN
from rft_data.web.app import make_app
from rft_data.web.report import report
from rft_data.web.subjects import Subjects
from tests.rft_data.web.conftest import FORM_TOKEN
from tests.rft_data.web.test_page import links, shown

OWN = re.compile(
    r"hub://[\d.:]+|(?:/[\w.-]+)+/small(?:/buffer)?|.* GiB .*|\d+ \w+(?: \d+ \w+)? ago|"
    r"<pre class=.tokens.*?</pre>"
)
"""What is each page's own: where it reads, its disk, its moment, and tokens: the folder has their model."""


@pytest.fixture
def owner(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Buffer, HubServer]]:
    """A run whose process has its buffer, and offers a hub with its secret in the environment."""
    folder = tmp_path / "small"  # the name in its recipe
    shutil.copytree(runs / "run", folder)
    folders = RunFolders(folder, shown=SHOWN)
    with Buffer(folder / "buffer") as buffer, HubServer(buffer, folders=folders) as hub:
        monkeypatch.setenv(HUB_TOKEN, hub.token)
        yield buffer, hub


def page_over(subjects: Subjects) -> TestClient:
    return TestClient(make_app(subjects, "ann", FORM_TOKEN), follow_redirects=False)


@pytest.mark.slow
def test_the_page_over_a_hub_shows_what_the_page_over_the_folder_shows(
    owner: tuple[Buffer, HubServer], tmp_path: Path
) -> None:
    with Subjects([owner[1].address]) as far, Subjects([str(tmp_path / "small")]) as near:
        assert [one.key for one in far] == ["small"]
        there, here, seen = page_over(far), page_over(near), set()
        waiting = ["/s/small", "/s/small/experiences"]
        while waiting:
            path = waiting.pop()
            kind = re.sub(r"\d+", "0", path).partition("?")[0]
            if kind in seen or kind.endswith(("/file", ".png", ".svg")):
                continue
            seen.add(kind)
            mine = here.get(path)
            text = shown(there, path, mine.status_code)
            assert OWN.sub("", text) == OWN.sub("", mine.text), path
            waiting += links(text) if not path.endswith("/json") else []
        assert {f"/s/small/{view}" for view in ("experiences", "flow", "tasks", "steps/0", "rows/0")} <= seen
        for search in ("words=apple", "like=0"):
            assert "which does not hand out indexes" in shown(there, f"/s/small/experiences?{search}")
        form = {"form_token": FORM_TOKEN, "text": "- reward_range_filter: {min_reward: 0}", "groups": 2}
        answer = there.post("/s/small/try", data=form)
        assert "hands out rows and not the buffer&#39;s own files" in answer.text, answer.text


@pytest.mark.slow
def test_words_go_through_the_hub_as_its_token_may(
    owner: tuple[Buffer, HubServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, hub = owner
    said = buffer.counts()["feedback"]
    with Subjects([hub.address]) as subjects:
        page, form = page_over(subjects), {"act": "up", "form_token": FORM_TOKEN}
        assert page.post("/s/small/rows/0/word", data=form).status_code == 303
        assert buffer.counts()["feedback"] == said + 1
        monkeypatch.setenv(HUB_TOKEN, make_token(hub.token, HubRole.READER, "looks"))
        refused = page.post("/s/small/rows/1/word", data=form)
        assert refused.status_code == 403
        assert "not for the role &#39;reader&#39;" in refused.text
        assert buffer.counts()["feedback"] == said + 1


@pytest.mark.slow
def test_the_page_over_a_hub_that_no_run_owns_shows_its_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Buffer(tmp_path / "buffer") as buffer, HubServer(buffer) as hub:
        monkeypatch.setenv(HUB_TOKEN, hub.token)
        with Subjects([hub.address]) as subjects:
            assert [(one.key, one.run_dir) for one in subjects] == [("hub", None)]
            assert "experiences" in shown(page_over(subjects), "/s/hub")
        with pytest.raises(RecipeError, match=r"is the hub of a buffer that no run owns, and a report is"):
            report(hub.address)


@pytest.mark.slow
def test_a_report_over_a_hub_is_that_of_its_run(owner: tuple[Buffer, HubServer], tmp_path: Path) -> None:
    far, near = report(owner[1].address), report(str(tmp_path / "small"))
    for part in ("<svg", "<h2", "<dt"):
        assert far.count(part) == near.count(part) > 0, part
    with pytest.raises(RecipeError, match=r"'.*/small/buffer' is a buffer, and a report is about a run"):
        report(str(tmp_path / "small" / "buffer"))
