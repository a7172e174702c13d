"""Every view in a real browser: readable by all, on every screen, from this host alone, without a jump."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT

from tests.rft_data.web.visitor import Visitor

pytestmark = pytest.mark.heavy
PHONE, DESK, WIDE = 360, 1280, 2560
GRAVE = ("serious", "critical")
AXE = "axe.run({resultTypes: ['violations']})"
TABS = 40
"""Controls of a view that are visited with the Tab key."""
FILES = re.compile(r"\.(csv|svg|png|jsonl|zip|yaml)$|/(json|file)$|/payloads/")
SHIFT = """() => new Promise(done => {
  let sum = 0;
  new PerformanceObserver(list => { for (const one of list.getEntries()) sum += one.value; })
    .observe({type: "layout-shift", buffered: true});
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(sum), 0)));
})"""
CONTROLS = """() => {
  window.wanted = [...document.querySelectorAll(
      "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
    .filter(one => one.tabIndex >= 0 && !one.disabled && one.checkVisibility() && !(
      one.type === "radio" && document.querySelector(`input[name="${one.name}"]`) !== one));
  window.came = [];
  document.addEventListener("focusin", event => window.came.push(
    [event.target, getComputedStyle(event.target).outlineStyle]));
  return window.wanted.length;
}"""
MISSED = """count => window.wanted.slice(0, count)
  .filter((one, place) => (window.came[place] || [])[0] !== one || window.came[place][1] === "none")
  .map(one => one.outerHTML.slice(0, 120))"""


def kind(path: str) -> str:
    """What sort of view an address leads to: its path without numbers and names."""
    plain = re.sub(r"/groups/.*", "/groups/0", re.sub(r"\d+", "0", urlsplit(path).path))
    return re.sub(r"^/s/[^/]+/", "/s/any/", plain)


def check(visitor: Visitor) -> list[str]:
    """What is wrong with the open view."""
    page, found = visitor.page, []
    if shift := page.evaluate(SHIFT):
        found.append(f"the layout shifted by {shift:.3f}")
    page.evaluate(AXE_SCRIPT)
    for scheme, width in (("light", DESK), ("dark", PHONE)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 800})
        for one in page.evaluate(AXE)["violations"]:
            if one["impact"] in GRAVE:
                found.append(f"{scheme}: {one['help']}: {one['nodes'][0]['html'][:200]}")
    for width in (PHONE, WIDE):
        page.set_viewport_size({"width": width, "height": 800})
        if (needed := page.evaluate("document.documentElement.scrollWidth")) > width:
            found.append(f"is {needed} px wide on a screen of {width}")
    page.set_viewport_size({"width": DESK, "height": 800})
    count = min(TABS, page.evaluate(CONTROLS))
    for _ in range(count):
        page.keyboard.press("Tab")
    found += [f"the Tab key misses, or shows no focus on {one}" for one in page.evaluate(MISSED, count)]
    return [f"{visitor.place} {one}" for one in found]


def test_every_view(visitor: Visitor) -> None:
    seen: set[str] = set()
    waiting, wrong = ["/", "/compare?run=run&run=preferred"], []
    while waiting:
        path = waiting.pop(0)
        if kind(path) in seen or FILES.search(urlsplit(path).path):
            continue
        seen.add(kind(path))
        answer = visitor.open(path)
        assert answer.status == 200, path
        wrong += check(visitor)
        hrefs = visitor.page.eval_on_selector_all(
            "a[href]", "all => all.map(one => one.pathname ? one.pathname + one.search : one.href.baseVal)"
        )
        waiting += list(dict.fromkeys(hrefs))
    assert not wrong, "\n".join(wrong)
    assert {"/", "/compare", "/s/run", "/s/library", "/s/any/metric", "/s/any/steps/0"} <= seen
    assert {
        "/s/any/rows/0",
        "/s/any/groups/0",
        "/s/any/experiences",
        "/s/any/choose",
        "/s/any/tasks",
    } <= seen


def test_a_view_that_is_wrong_is_found(visitor: Visitor) -> None:
    visitor.open("/s/library")
    visitor.page.evaluate(
        """async () => {
          const told = kind => new Promise(
            done => new PerformanceObserver(done).observe({type: kind, buffered: true}));
          await told("paint");  // what comes before the first one shifts nothing
          const late = document.createElement("div");
          late.style.cssText = "height: 200px; width: 3000px";
          late.innerHTML = '<svg role="img" width="9" height="9"></svg>';
          document.querySelector("main").prepend(late);
          const pale = document.createElement("a");
          pale.href = "/"; pale.textContent = "pale"; pale.tabIndex = -1;
          pale.style.color = "#eee"; pale.style.background = "#fff";
          document.querySelector("main").append(pale);
          document.querySelector("main a").tabIndex = 1;
          await told("layout-shift");
        }"""
    )
    found = " ".join(check(visitor))
    for word in ("the layout shifted", "alternative text", "contrast", "px wide", "Tab key misses"):
        assert word in found, word
