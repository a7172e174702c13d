"""Charts as files hold the numbers of the charts."""

import csv
import html
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from rft_data.buffer import Buffer
from rft_data.web.plot import Bars, Curves, Kind, download
from rft_data.web.views.runs import zooms

SVG = "{http://www.w3.org/2000/svg}"


def table(page: TestClient, path: str) -> list[dict[str, str]]:
    answer = page.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"].startswith("attachment; ")
    return list(csv.DictReader(io.StringIO(answer.text)))


def linked(page: TestClient, path: str, kind: str) -> str:
    """The address of the first file of a kind that a page offers."""
    found = re.search(rf'href="([^"]+\.{kind}(?:\?[^"]+)?)" download', page.get(path).text)
    assert found is not None
    return html.unescape(found[1])


@pytest.mark.slow
def test_every_chart_is_offered_as_a_drawing_a_picture_and_numbers(page: TestClient) -> None:
    for path in (
        "/s/run/metric?name=trainer/reward&smoothing=0.5&log=true",
        "/compare?run=run&run=preferred",
        "/s/run/flow",
        "/s/run/tasks",
        "/s/run/experiences?where=reward+%3E%3D+0",
    ):
        drawing = page.get(linked(page, path, "svg"))
        assert drawing.headers["content-type"] == "image/svg+xml"
        root = ElementTree.fromstring(drawing.text)  # noqa: S314 - made here
        assert root.tag == f"{SVG}svg"
        assert len(root.findall(f".//{SVG}path")) > 10
        assert ("#0b68cb" in drawing.text) == (path != "/s/run/tasks"), "no task was always solved"
        assert linked(page, path, "png")
        assert table(page, linked(page, path, "csv"))
    assert drawing.text == page.get(linked(page, path, "svg")).text, "the same chart is the same file"
    picture = Image.open(io.BytesIO(page.get(linked(page, path, "png")).content))
    assert picture.format == "PNG"
    assert (11, 104, 203) in {colour for _, colour in picture.convert("RGB").getcolors(1 << 20) or []}


@pytest.mark.slow
def test_the_flow_and_the_tasks_have_the_numbers_that_the_page_shows(page: TestClient) -> None:
    rows = table(page, linked(page, "/s/run/flow", "csv"))
    assert (rows[0]["rows"], rows[-1]["rows"]) == ("sampled", "trained")
    assert int(rows[-1]["left"]) == int(rows[0]["left"]) - sum(int(row["gone"]) for row in rows[1:-1]) > 0
    shown = page.get("/s/run/tasks").text
    rows = table(page, "/s/run/tasks.csv")
    assert [row["task"][:8] for row in rows] == re.findall(r"<code>(.{1,8})</code></a></td>", shown)
    assert rows
    for row in rows:
        shares = [float(row[name]) for name in row if name.startswith("steps ") and row[name]]
        assert shares
        assert all(0 <= share <= 1 for share in shares)
        assert 0 < float(row["pass rate"]) < 1
    assert page.get("/s/run/flow.csv?consumer=nobody").status_code == 404


def test_numbers_of_runs_lie_side_by_side(page: TestClient) -> None:
    rows = table(page, "/compare.csv?run=run&run=preferred&name=trainer/loss")
    alone = table(page, "/s/run/metric.csv?name=trainer/loss")  # the other one's buffer is not here
    assert [(row["step"], row["run"]) for row in rows] == [(row["step"], row["value"]) for row in alone]
    assert len(rows) == 3
    assert "did you mean" in page.get("/compare.csv?run=run&run=preferred&name=trainer/los").text


@pytest.mark.slow
def test_bins_hold_every_reward_once(page: TestClient, runs: Path) -> None:
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        rewards = buffer.read("experiences", ["reward"])["reward"].drop_null().to_numpy()
    for row in table(page, "/s/run/rewards.csv"):
        low, high = float(row["low"]), float(row["high"])
        inside = (rewards >= low) & ((rewards < high) | (high == rewards.max()) & (rewards == high))
        assert int(row["count"]) == np.count_nonzero(inside)
    assert page.get("/s/run/rewards.svg?where=reward+%3E+99").status_code == 404
    assert page.get("/s/run/rewards.svg?where=rewrd").status_code == 404
    assert page.get("/s/run/rewards.pdf").status_code == 422


@pytest.mark.slow
def test_names_are_text_in_a_drawing() -> None:
    for name in ("$\\frac{$", "<script>alert(1)</script>", "a&b", "\x00\x1b[31m", "_hidden", "\u202eabc"):
        drawn = download(Curves(name, {name: [(0, 1.0)], "b": [(1, 2.0)]}, {}), Kind.SVG)
        root = ElementTree.fromstring(drawn.body)  # noqa: S314 - made here
        assert not root.findall(f".//{SVG}script")
        assert re.fullmatch(r'attachment; filename="[\w-]+\.svg"', drawn.headers["content-disposition"])


def test_a_step_without_a_value_is_empty() -> None:
    curves = Curves("x", {"a": [(0, 1.0), (2, 3.0)], "b": [(2, 4.0)]}, {})
    assert curves.rows() == [["step", "a", "b"], [0, 1.0, ""], [2, 3.0, 4.0]]
    bars = Bars("x", [0, 1, 2], {"before": [5, 6], "after": [3, 4]})
    assert bars.rows() == [["low", "high", "before", "after"], [0, 1, 5, 3], [1, 2, 6, 4]]


def test_a_chart_is_zoomed(page: TestClient) -> None:
    path = "/s/run/metric?name=trainer/reward&first=1&last=1"
    text = page.get(path).text
    assert re.findall(r'href="/s/run/steps/(\d)"', text) == ["1"]
    assert [row["step"] for row in table(page, linked(page, path, "csv"))] == ["1"]
    links = {words: html.unescape(to) for to, words in re.findall(r'href="(\?name[^"]+)">([^<]+)<', text)}
    whole = page.get(f"/s/run/metric{links['all steps']}").text
    assert re.findall(r'href="/s/run/steps/(\d)"', whole) == ["0", "1", "2"]
    assert "no value that can be drawn" in page.get("/s/run/metric?name=trainer/reward&first=9").text


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [
        (None, None, {"first half": (0, 50), "second half": (50, 100)}),
        (
            20,
            40,
            {
                "first half": (20, 30),
                "second half": (30, 40),
                "earlier": (0, 20),
                "later": (40, 61),
                "all steps": (0, 100),
            },
        ),
        (98, None, {"earlier": (95, 98), "all steps": (0, 100)}),
        (200, None, {"all steps": (0, 100)}),
    ],
)
def test_links_lead_to_other_steps(
    first: int | None, last: int | None, wanted: dict[str, tuple[int, int]]
) -> None:
    assert dict(zooms((0, 100), first, last)) == wanted
