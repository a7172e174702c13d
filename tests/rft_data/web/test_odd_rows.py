"""Rows, buffers and runs that are out of the ordinary."""

import html
import re
import shutil
from pathlib import Path
from urllib.parse import parse_qsl, quote

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.effective_reward import ShapedRewards
from rft_data.core.rows import Experience, now
from rft_data.core.schema import ANNOTATIONS
from rft_data.web.app import make_app
from rft_data.web.listing import listing
from rft_data.web.reward_spread import histogram
from rft_data.web.row_choice import Choice, chosen
from rft_data.web.subjects import Subjects
from rft_data.web.task_map import TaskLine, TaskMap
from tests.rft_data.conftest import make_experience
from tests.rft_data.web.conftest import FORM_TOKEN


def page_over(*folders: Path) -> TestClient:
    return TestClient(
        make_app(Subjects([str(one) for one in folders]), "me", FORM_TOKEN), follow_redirects=False
    )


def stored(folder: Path, *rows: Experience) -> Path:
    with Buffer(folder) as buffer:
        assert buffer.append(rows).stored == len(rows)
    return folder


NEXT = float(np.nextafter(np.float32(0.3), np.float32(1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "rewards",
    [[0.3, NEXT], [1e17], [1.0, 1.0], [-3e38, 3e38, 0.0], [0.0, 1e-45], [0.0, 0.1, 0.3, 0.35, 0.7, 1.0]],
)
def test_bins_hold_every_reward_once_however_near_or_far(tmp_path: Path, rewards: list[float]) -> None:
    rows = [make_experience(number, reward=reward) for number, reward in enumerate(rewards)]
    with Buffer(stored(tmp_path / "buffer", *rows), read_only=True) as buffer:
        bins = histogram(buffer, Choice(), "").bins
        kept = buffer.read("experiences", ["reward"])["reward"].to_pylist()
        assert (bins[0].low, bins[-1].high) == (min(kept), max(kept))
        assert sum(one.count for one in bins) == len(rewards)
        for one in bins:
            assert buffer.read("experiences", ["seq"], chosen(one.where).where).num_rows == one.count


@pytest.mark.slow
def test_messages_and_parts_of_any_form_are_shown(tmp_path: Path) -> None:
    row = make_experience(
        messages=("bare text", {"content": None}, {"role": "assistant", "content": "2"}),
        reward_parts={"many": 10**400, "nested": {"a": 1}, "none": None},
    )
    page = page_over(stored(tmp_path / "buffer", row))
    for path in ("/s/buffer/rows/0", "/s/buffer/groups/run/g0", "/s/buffer/rows/0/json"):
        assert page.get(path).status_code == 200, path
    assert "<pre>bare text</pre>" in page.get("/s/buffer/rows/0").text


@pytest.mark.slow
def test_a_task_with_quotes_leads_to_its_own_rows(
    page: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "O'Brien's' or reward >= 0 or task_id = '"
    line = TaskLine("it's", name, 1, 0.5, 0.1, ())
    monkeypatch.setattr("rft_data.web.views.tasks.task_map", lambda *_: TaskMap((line,), 1, 0, 0, 1))
    named = {"taskset": "it's", "task_id": name}
    [listed] = re.findall(r'href="/s/run/task\?([^"]+)"', page.get("/s/run/tasks").text)
    assert dict(parse_qsl(html.unescape(listed))) == named
    rows = [
        make_experience(number, experience_id=f"e{number}", taskset=taskset, task_id=task)
        for number, (taskset, task) in enumerate([("it's", name), ("it's", "other"), ("another", name)])
    ]
    own = page_over(stored(tmp_path / "buffer", *rows))
    shown = own.get("/s/buffer/task", params=named).text
    link = re.search(r'href="/s/buffer/experiences\?where=([^"]+)"', shown)
    assert link is not None
    found = own.get(f"/s/buffer/experiences?where={html.unescape(link[1])}").text
    assert re.findall(r'href="/s/buffer/rows/(\d+)"', found) == ["0"]


@pytest.mark.slow
def test_a_runs_page_leads_to_its_own_rows(page: TestClient) -> None:
    wanted = "/s/run/experiences?where=" + quote("run_id = 'small'")
    assert f'href="{wanted}"' in page.get("/s/run").text


@pytest.mark.slow
def test_what_is_gone_does_not_hide_the_others(runs: Path, tmp_path: Path) -> None:
    folders = [
        Path(shutil.copytree(runs / name, tmp_path / name)) for name in ("run", "preferred", "library")
    ]
    page = page_over(*folders)
    assert page.get("/").status_code == 200
    for folder in folders[1:]:
        shutil.rmtree(folder)
    answer = page.get("/")
    assert answer.status_code == 200
    assert "holds no run" in answer.text
    assert 'name="run" value="run"' in answer.text
    assert page.get("/s/preferred").status_code == 404


def test_a_report_is_of_one_run(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    refused = CliRunner().invoke(app, ["report", str(runs), "-o", str(out)])
    assert refused.exit_code != 0
    assert "is a folder of runs" in refused.output
    assert not out.exists()


def test_no_row_is_searched_for_above_the_newest(tmp_path: Path) -> None:
    with Buffer(stored(tmp_path / "buffer", make_experience()), read_only=True) as buffer:
        found = listing(buffer, chosen("reward < 0"), 2**61)
        assert (found.rows, found.older, found.searched_to) == ([], None, 0)
        assert [row["seq"] for row in listing(buffer, Choice(), 2**61).rows] == [0]


@pytest.mark.slow
def test_a_reward_that_operators_shaped_is_shown_as_the_one_that_counts(tmp_path: Path) -> None:
    """The newest annotation says it, and the stored reward stays beside it."""
    rows = [make_experience(number, experience_id=f"e{number}", reward=0.25) for number in range(3)]
    said = [(0, "p", 0.5), (0, "q", 0.625), (0, "p", 0.75), (1, "p", 0.5), (1, "q", None), (2, "p", 0.25)]
    annotations = [
        dict.fromkeys(ANNOTATIONS.names)
        | {"seq": seq, "experience_id": f"e{seq}", "pipeline_hash": pipeline, "verdict": "kept"}
        | {"dropped_by": "", "reason": "", "masked": False, "stats": "{}", "created_at": now()}
        | {"shaped_reward": shaped}
        for seq, pipeline, shaped in said
    ]
    with Buffer(stored(tmp_path / "buffer", *rows)) as buffer:
        for one in annotations:
            buffer.annotate(pa.Table.from_pylist([one], schema=ANNOTATIONS))
        counted = ShapedRewards(buffer).effective(buffer.read("experiences")).to_pylist()
    assert counted == [0.75, 0.25, 0.25]
    page = page_over(tmp_path / "buffer")
    for place in ("rows/{}", "experiences?where=seq%20=%20{}"):
        for seq, wanted in enumerate([["0.75"], [], []]):
            text = page.get(f"/s/buffer/{place.format(seq)}").text
            assert "0.25" in text
            assert re.findall(r"→ ([\d.]+)", text) == wanted
