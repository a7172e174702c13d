"""What a person does on the page, by mouse and by keyboard alone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.rft_data.web.visitor import Visitor

pytestmark = pytest.mark.slow
both = pytest.mark.parametrize("by", ["mouse", "keyboard"])


@both
def test_a_person_goes_from_a_curve_to_a_rollout_and_scores_it(visitor: Visitor, by: str) -> None:
    page = visitor.page
    visitor.press("link", "library", by)
    visitor.press("link", "All", by)
    visitor.press("link", "run", by)
    visitor.press("link", "trainer/reward", by)
    page.get_by_label("smoothing").fill("0.5")
    visitor.press("checkbox", "log axis", by)
    visitor.press("button", "Draw", by)
    assert "smoothing=0.5" in visitor.place
    assert "log=true" in visitor.place
    visitor.press("link", "step 1", by)
    assert visitor.place == "/s/run/steps/1"
    visitor.press("link", re.compile(r"^\d+$"), by)
    row = visitor.place
    assert re.fullmatch(r"/s/run/rows/\d+", row)
    page.get_by_label("score").fill("0.25")
    page.get_by_label("comment").fill(f"said by {by}")
    visitor.press("button", "Store as me", by)
    expect(page.get_by_text(f"0.25 said by {by} me,")).to_be_visible()
    visitor.press("button", "Not good", by)
    expect(page.get_by_text("thumb 0").last).to_be_visible()
    visitor.press("button", "Take back", by, -1)
    assert visitor.place == "/s/run/said"
    expect(page.get_by_text("taken back").first).to_be_visible()
    visitor.open(row)
    visitor.press("link", "group", by)
    assert "/groups/" in visitor.place


@both
def test_a_person_filters_by_words_and_by_a_bin(visitor: Visitor, by: str) -> None:
    page = visitor.page
    visitor.open("/s/run/experiences")
    rows = page.locator("tbody tr")
    page.get_by_label("filter").fill("seq < 3")
    visitor.press("button", "Show", by)
    assert rows.count() == 3
    visitor.open("/s/run/experiences")
    visitor.press("link", re.compile(r"^[1-9]\d* from"), by)
    assert "reward" in page.get_by_label("filter").input_value()
    assert rows.count()


def test_a_filter_with_a_mistake_is_answered_in_words(visitor: Visitor) -> None:
    visitor.open("/s/run/experiences")
    visitor.page.get_by_label("filter").fill("rewrd > 1")
    visitor.press("button", "Show", "keyboard")
    expect(visitor.page.get_by_role("alert")).to_contain_text("rewrd")
    assert len(visitor.wrong) == 1
    assert "400" in visitor.wrong.pop()


@both
def test_a_person_compares_two_runs(visitor: Visitor, by: str) -> None:
    for key in ("run", "preferred"):
        visitor.press("checkbox", f"compare {key}", by)
    visitor.press("button", "Compare the chosen runs", by)
    assert visitor.place == "/compare?run=run&run=preferred"
    expect(visitor.page.get_by_role("img", name="trainer/loss")).to_be_visible()


@both
def test_a_person_chooses_the_better_of_two(visitor: Visitor, by: str) -> None:
    page = visitor.page
    visitor.open("/s/library/choose")
    asked, names = [], {"a": "a is better", "s": "Skip"}
    for answer in names:
        asked.append({page.locator(f"input[name={side}]").input_value() for side in ("left", "right")})
        if by == "mouse":
            visitor.press("button", names[answer], by)
        else:
            visitor.press_access_key(answer)
        assert visitor.place == "/s/library/choose"
    asked.append({page.locator(f"input[name={side}]").input_value() for side in ("left", "right")})
    assert asked[0] != asked[1] != asked[2] != asked[0]


def test_numbers_come_as_a_file(visitor: Visitor) -> None:
    visitor.open("/s/run/metric?name=trainer/reward")
    with visitor.page.expect_download() as download:
        visitor.page.get_by_role("link", name="CSV").press("Enter")
    assert download.value.suggested_filename == "trainer-reward.csv"
    assert download.value.path().read_text().startswith("step,value\n0,")


def test_a_stranger_without_the_link_sees_nothing(visitor: Visitor) -> None:
    visitor.page.context.clear_cookies()
    assert visitor.open("/s/run").status == 401
    assert all("401" in one for one in visitor.wrong)
    visitor.wrong.clear()
