"""Where rollouts went: the numbers of the page add up, and are those of the buffer."""

import html
import re
from collections import Counter
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.sampler.conservation import Conservation
from rft_data.web.flow import flow


def lines(text: str) -> list[tuple[str, int | None, int]]:
    """What, gone and left of each line of the flow on a page."""
    found = re.findall(r'<th scope="row">(.*?)</th><td class="n">(\d*)</td><td class="n">(\d+)</td>', text)
    return [
        (html.unescape(re.sub("<.*?>", "", what)), int(gone) if gone else None, int(left))
        for what, gone, left in found
    ]


@pytest.mark.slow
def test_the_flow_of_a_run_adds_up(page: TestClient, runs: Path) -> None:
    (first, _, sampled), *stages, (last, _, trained) = lines(page.get("/s/run/flow").text)
    assert (first, last) == ("sampled", "trained")
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        rows = buffer.read("experiences", ["source", "run_id"]).to_pylist()
        closed = {row["group_id"]: row["seqs"] for row in buffer.read("groups").to_pylist()}
        steps = {row["step"] for row in buffer.read("consumed").to_pylist()}
        grants = [row for row in buffer.read("leases").to_pylist() if row["kind"] == "grant"]
    assert sampled == sum(row["source"] == "rollout" and row["run_id"] == "small" for row in rows) > 0
    in_checkpoints = [seq for row in grants if row["step"] in steps for seq in row["seqs"]]
    assert trained == len(in_checkpoints) > 0
    leased = {seq for row in grants for seq in row["seqs"]} - set(in_checkpoints)
    waiting = {seq for seqs in closed.values() for seq in seqs} - set(in_checkpoints) - leased
    gone = {what: number for what, number, _ in stages}
    assert gone.get("in a step that no checkpoint holds yet", 0) == len(leased)
    assert gone.get("kept, waiting for the trainer", 0) == len(waiting)
    for (_, _, before), (_, number, left) in zip([("", None, sampled), *stages], stages, strict=False):
        assert number is not None
        assert before - number == left
    assert (stages[-1][2] if stages else sampled) == trained


def test_operators_stand_in_their_order_with_what_they_dropped() -> None:
    counts = Conservation(
        produced=100, trained=40, pending=10, filtered=Counter(late=20, early=25, former=3), stale=2, reused=4
    )
    found = flow("trainer", counts, ["early", "unused", "late"])
    assert [(one.dropped_by, one.gone, one.left) for one in found.stages if one.dropped_by] == [
        ("early", 25, 75),
        ("late", 20, 55),
        ("former", 3, 52),
    ]
    assert [one.left for one in found.stages][-1] == found.trained == 40
    assert [one.lost for one in found.stages] == [True, True, True, True, False]
    assert all(sum(one.bar) <= 300 for one in found.stages)
    assert found.residual == 0
    broken = flow("trainer", Conservation(produced=5, trained=4), [])
    assert broken.residual == 1


def test_a_buffer_with_too_many_rows_names_the_command(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.web.flow.MOST_ROWS", 3)
    text = page.get("/s/run/flow").text
    assert "rft buffer books" in text
    assert not lines(text)


@pytest.mark.slow
def test_a_run_says_its_staleness_idle_time_and_groups(page: TestClient) -> None:
    text = page.get("/s/run").text
    assert "0 steps on average, 0 at most in the last step, 0 allowed" in text
    assert re.search(r"<dt>trainer</dt><dd>idle 68 % of the last step", text)
    assert re.search(r"<dt>groups</dt><dd>9 drawn:\s+9 trained</dd>", text)


@pytest.mark.slow
def test_the_list_of_runs_says_tokens_and_disk(page: TestClient, runs: Path) -> None:
    row = page.get("/").text.split('href="/s/run"')[1].split("</tr>")[0]
    assert "413.2" in row
    size = sum(file.stat().st_size for file in (runs / "run").rglob("*") if file.is_file())
    shown = re.search(r"([\d.]+) (KiB|MiB)", row)
    assert shown is not None
    assert float(shown[1]) * {"KiB": 2**10, "MiB": 2**20}[shown[2]] == pytest.approx(size, rel=0.05)
