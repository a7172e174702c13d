"""What a person corrects, searches for and takes along, by the keyboard alone; its views are readable."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser, expect
from typer.testing import CliRunner

from rft_data.cli.app import app
from rft_data.web.listing import PAGE
from tests.rft_data.web.test_browser_views import check
from tests.rft_data.web.visitor import Served, Visitor
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.heavy


def unfold(visitor: Visitor, summary: str) -> None:
    """Open what a heading hides."""
    visitor.page.locator("summary", has_text=summary).press("Enter")


def downloaded(visitor: Visitor, name: str) -> bytes:
    """The content of the file behind a link."""
    with visitor.page.expect_download(timeout=1_000 * LIMIT_S) as download:
        visitor.page.get_by_role("link", name=name, exact=True).press("Enter")
    return download.value.path().read_bytes()


def test_a_person_corrects_an_answer_retires_its_task_and_takes_both_back(visitor: Visitor) -> None:
    page = visitor.page
    visitor.open("/s/run/rows/117")
    unfold(visitor, "Correct the answer")
    page.get_by_label("the corrected answer").fill("It is 12.")
    visitor.press("button", "Store the correction as me", "keyboard")
    said = page.locator("ul.said li", has_text="It is 12.")
    expect(said).to_have_count(1)
    visitor.press("button", "Retire its task", "keyboard")
    visitor.open("/s/run/tasks")
    expect(page.get_by_role("cell", name="retired by people")).to_have_count(1)
    assert check(visitor) == []
    visitor.open("/s/run/rows/117")
    visitor.press("button", "Bring its task back", "keyboard")
    visitor.open("/s/run/tasks")
    expect(page.get_by_role("cell", name="retired by people")).to_have_count(0)
    visitor.open("/s/run/rows/117")
    with page.expect_navigation():
        said.get_by_role("button", name="Take back").press("Enter")
    visitor.open("/s/run/rows/117")
    expect(said).to_contain_text("taken back")


def test_a_person_orders_narrows_and_widens_the_table(visitor: Visitor) -> None:
    page = visitor.page
    visitor.open("/s/run/experiences")
    page.get_by_label("order").select_option("best")
    visitor.press("button", "Show", "keyboard")
    assert "order=best" in visitor.place
    rewards = page.locator("tbody tr td:nth-child(4)")
    assert set(rewards.all_inner_texts()) == {"1"}
    visitor.press("link", "further", "keyboard")
    unfold(visitor, "narrow")
    page.get_by_label("reward from").fill("0.5")
    page.get_by_label("source").select_option("rollout")
    visitor.press("button", "Narrow", "keyboard")
    assert rewards.all_inner_texts() == ["1"] * 3
    assert check(visitor) == []
    for left in (1, 0):
        visitor.press("link", re.compile("^without "), "keyboard")
        expect(page.get_by_role("link", name=re.compile("^without "))).to_have_count(left)
    assert rewards.count() == PAGE
    page.get_by_label("words").fill("sum")
    visitor.press("button", "Show", "keyboard")
    expect(page.get_by_text("rft buffer search")).to_be_visible()  # nobody made an index of words
    visitor.open("/s/run/rows/117")
    visitor.press("link", "more like this", "keyboard")
    expect(page.get_by_text("has no vector yet")).to_be_visible()


def test_a_person_colours_tokens_and_looks_at_a_part_of_a_curve(visitor: Visitor) -> None:
    page = visitor.page
    visitor.open("/s/run/rows/117")
    for overlay in ("mask", "version", "advantage", "probability"):
        visitor.press("link", overlay, "keyboard")
        assert visitor.place == f"/s/run/rows/117?overlay={overlay}"
        expect(page.locator("b", has_text=overlay)).to_be_visible()
        assert check(visitor) == []
    visitor.open("/s/run/metric?name=trainer/reward")
    points = page.locator("svg.chart circle")
    assert points.count() == 3
    page.get_by_label("from step").fill("1")
    visitor.press("button", "Draw", "keyboard")
    assert points.count() == 2
    assert check(visitor) == []


def test_a_person_takes_pictures_and_rows_along(visitor: Visitor) -> None:
    visitor.open("/s/run/metric?name=trainer/reward")
    assert downloaded(visitor, "PNG").startswith(b"\x89PNG")
    visitor.open("/s/run/tasks")
    assert ElementTree.fromstring(downloaded(visitor, "tasks as SVG")).tag.endswith("svg")  # noqa: S314 - ours
    visitor.open("/s/run/experiences?where=seq+<+2")
    unfold(visitor, "as a file")
    assert len(downloaded(visitor, "jsonl").splitlines()) == 2


def test_the_report_of_a_run_is_a_readable_page(browser: Browser, served: Served) -> None:
    file = served.folder / "report.html"
    made = CliRunner().invoke(app, ["report", str(served.folder / "run"), "-o", str(file)])
    assert made.exit_code == 0, made.output
    with browser.new_context() as context:
        context.route("http**", lambda route: route.abort())
        reader = Visitor(context.new_page(), file.as_uri())
        reader.page.on("console", lambda message: reader.wrong.append(message.text))
        reader.page.goto(reader.home)
        assert check(reader) == []
        assert reader.wrong == []
