"""What a person does on the page, by mouse and by keyboard alone."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Browser, expect

from rft_data.core.lock import Lock
from rft_data.run.record import LOCK_FILE
from tests.rft_data.web.visitor import Served, Visitor
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.heavy
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


def test_two_people_are_two_authors_and_do_not_get_the_same_pair(
    visitor: Visitor, browser: Browser, served: Served
) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(served.other_link)
        pairs = []
        for one in (visitor.page, page):
            one.goto(urljoin(served.link, "/s/library/choose"))
            pairs.append({one.locator(f"input[name={side}]").input_value() for side in ("left", "right")})
        assert pairs[0].isdisjoint(pairs[1])
        page.goto(urljoin(served.link, "/s/library/rows/0"))
        expect(page.get_by_role("button", name="Store as bob")).to_be_visible()
        expect(page.get_by_role("button", name="Retire its task")).to_have_count(0)
        page.get_by_label("why, or the tag").fill("by-bob")
        with page.expect_navigation():
            page.get_by_role("button", name="Tag").press("Enter")
        visitor.open("/s/library/rows/0")
        expect(visitor.page.get_by_text("tag:by-bob 1 bob,")).to_be_visible()
        expect(visitor.page.get_by_role("button", name="Take back")).to_have_count(0)


@both
def test_a_person_tags_a_row_takes_it_out_and_admits_it_again(visitor: Visitor, by: str) -> None:
    page = visitor.page
    visitor.open(f"/s/library/rows/{1 if by == 'mouse' else 2}")
    page.get_by_label("why, or the tag").fill(f"odd-{by}")
    visitor.press("button", "Tag", by)
    expect(page.get_by_text(f"tag:odd-{by} 1 me,")).to_be_visible()
    for button, said in (("Quarantine", "quarantine 1 me,"), ("Re-admit", "quarantine 0 me,")):
        visitor.press("button", button, by)
        expect(page.get_by_text(said)).to_be_visible()


def test_a_person_tries_operators_and_readmits_what_they_keep(visitor: Visitor) -> None:
    page = visitor.page
    page.set_default_timeout(1_000 * LIMIT_S)
    visitor.open("/s/run/groups/small/0-00000003")
    visitor.press("link", "Try operators on it", "keyboard")
    page.get_by_label("operators, as in a recipe").fill("- grpo_advantage_mapper: {}")
    visitor.press_access_key("t")
    expect(page.get_by_role("heading", name="4 of 4 rows kept")).to_be_visible()
    visitor.press("button", re.compile("^Re-admit what it keeps"), "keyboard")
    expect(page.get_by_role("status")).to_contain_text("0 of 0 rejected groups are re-admitted")
    page.get_by_label("operators, as in a recipe").fill("- reward_variance_filtre: {}")
    visitor.press("button", "Try", "keyboard")
    expect(page.get_by_role("alert")).to_contain_text("reward_variance_filter")
    assert "400" in visitor.wrong.pop()


def test_a_live_run_is_followed(visitor: Visitor, served: Served) -> None:
    lock = Lock(served.folder / "run" / LOCK_FILE)
    try:
        visitor.open("/s/run")
        visitor.press("link", "follow", "keyboard")
        assert visitor.place == "/s/run?follow=true"
        with visitor.page.expect_navigation(timeout=1_000 * LIMIT_S):
            pass  # the page loads itself again
        visitor.press("link", "stop following", "keyboard")
        expect(visitor.page.locator("meta[http-equiv]")).to_have_count(0)
    finally:
        lock.release()


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
