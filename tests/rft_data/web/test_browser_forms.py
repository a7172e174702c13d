"""Operators are tried and recipes written in a real browser, by the keyboard; their views are readable."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.rft_data.web.test_browser_views import check
from tests.rft_data.web.visitor import Visitor

pytestmark = pytest.mark.heavy
LONG_MS = 180_000
"""An answer starts a process: no busy machine takes so long."""


def test_a_person_tries_operators(visitor: Visitor) -> None:
    page = visitor.page
    page.set_default_timeout(LONG_MS)
    visitor.open("/s/run/try")
    page.get_by_label("operators, as in a recipe").fill(
        "- overlong_penalty_mapper: {max_tokens: 8, cache_tokens: 4}\n- reward_variance_filter\n"
    )
    visitor.press("button", "Try", "keyboard")
    expect(page.get_by_role("heading", name="Before and after")).to_be_visible()
    expect(page.get_by_role("cell", name="dropped by reward_variance_filter")).to_be_visible()
    assert check(visitor) == []
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save as a recipe").press("Enter")
    assert "reward_variance_filter" in saved.value.path().read_text()
    page.get_by_label("operators, as in a recipe").fill("- rewrd_variance_filter")
    visitor.press("button", "Try", "keyboard")
    expect(page.get_by_text("line 1, column 3")).to_be_visible()
    assert check(visitor) == []
    assert [one for one in visitor.wrong if "400" not in one] == []
    visitor.wrong.clear()


def test_a_person_writes_a_recipe(visitor: Visitor) -> None:
    page = visitor.page
    page.set_default_timeout(LONG_MS)
    visitor.open("/")
    visitor.press("link", "Write a recipe", "keyboard")
    page.get_by_label("explorer.group_size").fill("0")
    page.get_by_label("evaluation.limit").fill("300")
    visitor.press("button", "Check", "keyboard")
    group = page.get_by_label("explorer.group_size")
    expect(group).to_have_value("0")
    expect(group).to_have_attribute("aria-invalid", "true")
    assert check(visitor) == []
    group.fill("4")
    visitor.press("button", "Check", "keyboard")
    expect(page.get_by_role("status")).to_have_text("valid: 'quickstart'")
    text = page.get_by_role("textbox", name="as text").input_value()
    assert "group_size: 4" in text
    assert "# measured, not rewarded: the summary shows it" in text
    assert "evaluation: {limit: 300}" in text
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download").press("Enter")
    assert saved.value.path().read_text() == text
    visitor.press("button", "Explain", "keyboard")
    expect(page.get_by_text("evaluation.limit = 300  # recipe.yaml:")).to_be_visible()
    assert [one for one in visitor.wrong if "400" not in one] == []
    visitor.wrong.clear()
