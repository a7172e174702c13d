"""What needs a run of one's own: images, a renderer, a model for meaning, and leave to start runs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from rft_data.buffer import Buffer
from rft_data.core.images import image_part
from rft_data.reading.search import embed
from rft_data.recipe.load import OWN_CODE_FILE
from tests.rft_data.conftest import make_experience
from tests.rft_data.web.test_browser_views import check
from tests.rft_data.web.visitor import Visitor, viewed, visiting
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a page over a folder with one run."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import BoW

    runs, own = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("own")
    (own / "show.py").write_text("def fruit(row): return [{'fruit': row['completion_text']}]\n")
    SentenceTransformer(modules=[BoW(vocab=["apples", "pears"])]).save(str(own / "model"))
    Image.new("RGB", (8, 8), "red").save(picture := io.BytesIO(), "PNG")
    with Buffer(runs / "mine" / "buffer") as buffer:
        parts = [
            {"type": "text", "text": "which?"},
            image_part(buffer.add_payload(picture.getvalue(), "image/png")),
        ]
        for number, said in enumerate(("apples", "pears")):
            messages = ({"role": "user", "content": parts}, {"role": "assistant", "content": said})
            row = make_experience(number, completion_text=said, messages=messages, prompt_messages=1)
            assert buffer.append([row]).stored == 1
        embed(buffer, str(own / "model"))
    recipe = {
        "name": "mine", "mode": "online", "explorer": {"render": "show.py:fruit"},
        "experience_ops": [{"semantic_diversity_filter": {"model": str(own / "model")}}],
    }  # fmt: skip
    (runs / "mine" / "recipe.json").write_text(json.dumps(recipe))
    (runs / "mine" / OWN_CODE_FILE).write_text(str(own))
    with viewed([str(runs), "--author", "me", "--render", "--allow-run"]) as (_, lines):
        yield lines[0].removeprefix("me: ")


@pytest.fixture
def owner(browser: Browser, link: str) -> Iterator[Visitor]:
    with visiting(browser, link) as person:
        person.page.set_default_timeout(1_000 * LIMIT_S)
        yield person


def test_images_a_renderer_and_a_search_by_meaning_are_shown(owner: Visitor) -> None:
    page = owner.page
    owner.open("/s/mine/rows/1")
    expect(page.locator("table.rendered td")).to_have_text("pears")
    image = page.locator("img").first
    assert image.evaluate("one => one.decode().then(() => one.naturalWidth)") > 0
    assert check(owner) == []
    owner.open("/s/mine/experiences")
    page.get_by_label("meaning").fill("pears")
    owner.press("button", "Show", "keyboard")
    expect(page.locator("tbody td.text").first).to_have_text("pears")
    assert check(owner) == []


def test_a_run_is_asked_about_before_it_starts(owner: Visitor) -> None:
    page = owner.page
    owner.open("/recipe?start=sums_dpo")
    owner.press("button", "Run…", "keyboard")
    expect(page.get_by_role("heading", name="Run this?")).to_be_visible()
    expect(page.locator("pre").first).to_contain_text("rft run ")
    assert check(owner) == []
    owner.press("button", "Back to the form", "keyboard")
    expect(page.get_by_role("button", name="Check")).to_be_visible()
