"""Every view over a real run: what it shows is what the buffer holds."""

import csv
import html
import io
import os
import re
from pathlib import Path
from typing import Any

import lance
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.reading.lineage import row_lineage, trained_on
from rft_data.reading.run_metrics import run_metrics
from rft_data.web.listing import listing
from rft_data.web.row_choice import chosen
from rft_data.web.serving import PRIORITY
from tests.rft_data.web.conftest import FORM_TOKEN
from tests.rft_data.web.visitor import Served


def shown(page: TestClient, path: str, status: int = 200) -> str:
    answer = page.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


def links(text: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(r'href="(/s/[^"]+)"', text)]


@pytest.mark.slow
def test_every_link_of_every_page_leads_somewhere(page: TestClient) -> None:
    seen: set[str] = set()
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        kind = re.sub(r"\d+", "0", path).partition("?")[0]
        if kind in seen or kind.endswith("/file"):
            continue
        seen.add(kind)
        waiting += links(shown(page, path)) if not path.endswith("/json") else []
    assert {"/s/run/steps/0", "/s/run/rows/0", "/s/run/rows/0/json", "/s/run/metric", "/s/library"} <= seen
    assert "/s/run/groups/small/0-0" in seen


@pytest.mark.slow
def test_a_point_of_a_chart_leads_to_the_rollouts_of_its_step(page: TestClient, runs: Path) -> None:
    steps = [link for link in links(shown(page, "/s/run/metric?name=trainer/reward")) if "/steps/" in link]
    assert steps == ["/s/run/steps/0", "/s/run/steps/1", "/s/run/steps/2"]
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        trained = trained_on(buffer, "small", 1)["seq"].to_pylist()
    assert sorted(f"/s/run/rows/{seq}" for seq in trained) == sorted(
        link for link in links(shown(page, steps[1])) if "/rows/" in link
    )


def test_numbers_are_those_of_the_buffer(page: TestClient, runs: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(shown(page, "/s/run/metric.csv?name=trainer/reward"))))
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        wanted = run_metrics(buffer, "small")["trainer/reward"].dropna()
    assert {int(row["step"]): float(row["value"]) for row in rows} == pytest.approx(wanted.to_dict())


@pytest.mark.slow
def test_filters_select_and_pages_go_on(page: TestClient, runs: Path) -> None:
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        stored = buffer.read("experiences", ["seq", "reward"]).to_pylist()
    good = [row["seq"] for row in stored if row["reward"] is not None and row["reward"] >= 0.5]
    found: list[int] = []
    path: str | None = "/s/run/experiences?where=reward+%3E%3D+0.5"
    while path is not None:
        text = shown(page, path)
        found += [int(seq) for seq in re.findall(r'href="/s/run/rows/(\d+)"', text)]
        older = re.search(r'rel="next" href="([^"]+)"', text)
        path = None if older is None else "/s/run/experiences" + html.unescape(older[1])
    assert found == sorted(good, reverse=True)
    assert len(found) > 50


@pytest.mark.slow
def test_rare_rows_are_found_over_windows(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rft_data.web.listing.WINDOW", 7)
    monkeypatch.setattr("rft_data.web.listing._GROWTH", 1)
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        stored = buffer.read("experiences", ["seq", "member"]).to_pylist()
        wanted = [row["seq"] for row in reversed(stored) if row["member"] == 3]
        found, below = [], None
        while True:
            one = listing(buffer, chosen("member = 3"), below, 4)
            found += [row["seq"] for row in one.rows]
            if one.older is None:
                break
            below = one.older
    assert found == wanted
    assert len(wanted) > 8


@pytest.mark.slow
def test_bins_of_the_histogram_hold_every_reward_once(page: TestClient, runs: Path) -> None:
    text = shown(page, "/s/run/experiences")
    bins = re.findall(r'href="(\?where=[^"]+)" title="[^"]*: (\d+)"', text)
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        stored = buffer.read("experiences", ["reward"])["reward"].drop_null()
    assert sum(int(count) for _, count in bins) == len(stored)
    for query, count in bins:
        within = shown(page, f"/s/run/experiences{html.unescape(query)}")
        assert len(re.findall(r'href="/s/run/rows/\d+"', within)) == min(int(count), 50)


@pytest.mark.slow
def test_a_row_shows_its_tokens_its_origin_and_its_use(page: TestClient, runs: Path) -> None:
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        row = buffer.take([160]).to_pylist()[0]
    text = shown(page, "/s/run/rows/160")
    tokens = re.findall(r'<span class="t[^"]*" title="([^"]+)">(.*?)</span>', text, re.DOTALL)
    assert len(tokens) == len(row["token_ids"])
    sampled = [title for title, _ in tokens if "logprob" in title]
    assert len(sampled) == sum(row["action_mask"])
    first = row["action_mask"].index(1)
    assert f"token {first}, id {row['token_ids'][first]}; probability" in sampled[0]
    assert f"logprob {row['logprobs'][first]:.4f}" in sampled[0]
    assert "policy version 5" in sampled[0]
    assert "".join(html.unescape(one) for _, one in tokens).startswith("<|user|>")
    assert '<a href="/s/run/steps/3?consumer=trainer">step 3</a> of small: granted' in text
    assert page.get("/s/run/rows/160/json").json()["row"]["token_ids"] == row["token_ids"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/s/run/rows/160", "/s/run/rows/160/json", "/s/run/rows/160/descent"])
def test_a_view_of_a_row_takes_it_from_the_table_once(
    page: TestClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    taken: list[list[int]] = []
    take = lance.LanceDataset._take_rows

    def noted(self: Any, row_ids: list[int], columns: list[str]) -> Any:
        taken.extend([row_ids] if "token_ids" in columns else [])
        return take(self, row_ids, columns=columns)

    monkeypatch.setattr(lance.LanceDataset, "_take_rows", noted)
    assert page.get(path).status_code == 200
    assert taken == [[160]]


@pytest.mark.slow
def test_tasks_are_shown_with_what_was_solved(page: TestClient, runs: Path) -> None:
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        groups = buffer.read("groups", ["task_id", "rewards", "version_min"]).to_pylist()
    solved: dict[str, list[float]] = {}
    for group in groups:
        solved.setdefault(group["task_id"], []).extend(reward for reward in group["rewards"])
    text = html.unescape(shown(page, "/s/run/tasks"))
    never = sum(not any(rewards) for rewards in solved.values())
    assert f"{len(solved)} were played: {never} never solved" in text
    for task, rewards in solved.items():
        line = re.search(
            rf"<code>{task[:8]}</code>.*?<td class=\"n\">(.*?) ±.*?<td class=\"n\">(\d+)</td>",
            text,
            re.DOTALL,
        )
        assert line is not None
        assert float(line[1]) == pytest.approx((sum(rewards) + 1) / (len(rewards) + 2), rel=1e-3)
        assert int(line[2]) == len(rewards)
    first = min(group["version_min"] for group in groups)
    for group in groups:  # one column for each version, the oldest on the left
        cell = re.search(
            rf"<code>{group['task_id'][:8]}</code>.*?<rect class=\"p(\d)\" x=\"(\d+)\"", text, re.DOTALL
        )
        assert cell is not None
        assert int(cell[2]) == 10 * (group["version_min"] - first)
        assert int(cell[1]) == round(8 * sum(group["rewards"]) / len(group["rewards"]))


def test_runs_are_compared(page: TestClient) -> None:
    text = html.unescape(shown(page, "/compare?run=run&run=preferred"))
    assert re.search(r"<td>mode</td><td[^>]*>\"online\"</td><td[^>]*>\"offline\"</td>", text)
    assert "<td>recipe</td>" not in text
    assert "trainer/loss" in text


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/s/nobody", 404, "this page shows no 'nobody'; it shows run, preferred, library"),
        ("/s/run/rows/99999", 404, "no experience with row number 99999"),
        ("/s/run/rows/abc", 422, "path.seq"),
        ("/s/run/experiences?where=rewrd+%3E+1", 400, "rewrd"),
        ("/s/run/experiences?below=-1", 422, "query.below"),
        ("/s/run/metric?name=trainer/rewrd", 404, "Did you mean"),
        ("/s/run/steps/99", 404, "no consumer has a lease for step 99"),
        ("/s/library/steps/1", 404, "open the run's folder"),
        ("/compare?run=run", 404, "choose 2 to 4 runs"),
        ("/compare?run=run&run=library", 404, "buffers have no numbers"),
        ("/compare", 422, "query.run"),
        ("/s/run/groups/none", 404, "no group 'none'"),
        ("/nowhere", 404, "Not Found"),
        ("/static/../app.py", 404, "Not Found"),
    ],
)
def test_what_cannot_be_shown_is_said_in_words(page: TestClient, path: str, status: int, text: str) -> None:
    assert text.lower() in html.unescape(shown(page, path, status)).lower()


def say(page: TestClient, **given: str) -> int:
    return page.post("/s/library/rows/0/say", data={"form_token": FORM_TOKEN, **given}).status_code


@pytest.mark.slow
def test_what_a_person_says_is_a_row_of_feedback(page: TestClient, runs: Path) -> None:
    assert say(page, value="0.25", text="wrong <b>unit</b>") == 303
    with Buffer(runs / "library", read_only=True) as buffer:
        row = buffer.tail("feedback", 1).to_pylist()[0]
        seq = buffer.take([0]).to_pylist()[0]
    assert (row["author"], row["key"], row["value"], row["text"]) == (
        "me",
        "score",
        0.25,
        "wrong <b>unit</b>",
    )
    assert row["experience_id"] == seq["experience_id"]
    assert "wrong &lt;b&gt;unit&lt;/b&gt;" in shown(page, "/s/library/rows/0")


@pytest.mark.slow
def test_what_must_not_be_said_is_not_stored(
    page: TestClient, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.web.writing.PATIENCE_S", 0)
    with Buffer(runs / "library", read_only=True) as buffer:
        before = buffer.counts()["feedback"]
    assert say(page, value="much") == 400
    assert say(page, value="nan") == 400
    assert say(page, text="   ") == 400
    assert say(page) == 400
    assert say(page, value="1", form_token="another") == 403  # noqa: S106
    assert page.post("/s/library/rows/0/say", data={"value": "1"}).status_code == 422
    with Buffer(runs / "library") as owner:  # as a run that is at work
        assert say(page, value="1") == 409
        assert owner.counts()["feedback"] == before


@pytest.mark.slow
def test_choices_between_two_rollouts_become_preference_pairs(page: TestClient, runs: Path) -> None:
    with Buffer(runs / "library", read_only=True) as buffer:
        before = buffer.counts()
    asked = []
    for answer in "abs":
        text = shown(page, "/s/library/choose")
        assert "reward" not in text
        left, right = re.findall(r'name="(?:left|right)" value="([^"]+)"', text)
        asked.append({left, right})
        form = {"form_token": FORM_TOKEN, "left": left, "right": right, "answer": answer}
        assert page.post("/s/library/choose", data={**form, "right": "nobody"}).status_code == 400
        assert page.post("/s/library/choose", data={**form, "form_token": "x"}).status_code == 403
        assert page.post("/s/library/choose", data=form).status_code == 303
        assert page.post("/s/library/choose", data=form).status_code == 400, "it has an answer"
        with Buffer(runs / "library", read_only=True) as buffer:
            newest = buffer.tail("preferences", 1).to_pylist()[0]
        chosen = {"a": left, "b": right}.get(answer)
        if chosen:
            assert (newest["author"], newest["chosen_experience_id"]) == ("me", chosen)
    assert len({frozenset(pair) for pair in asked}) == 3
    with Buffer(runs / "library", read_only=True) as buffer:
        after = buffer.counts()
    assert after["preferences"] - before["preferences"] == 2
    assert after["feedback"] - before["feedback"] == 3


@pytest.mark.slow
def test_a_report_is_one_file_without_links(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    command = ["report", str(runs / "run"), "-o", str(out)]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    text = out.read_text()
    assert not re.search(r"(href|src|url)[=(]", text)
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        last = trained_on(buffer, "small", 2).to_pylist()
    for row in last:
        assert f"row {row['seq']}, group {row['group_id']}" in text
        assert html.escape(row["completion_text"][:5]) in text
    assert "trainer/reward" in text
    assert "&#34;seed&#34;: 0" in text
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code != 0
    assert "give --overwrite" in refused.output
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code != 0


@pytest.mark.slow
def test_a_file_that_is_rewritten_meanwhile_is_read_again(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.reading.patience._PAUSE_S", 0)
    left = [OSError("a file is gone"), ValueError("and another")]

    def read(*given: object) -> object:
        if left:
            raise left.pop()
        return real(*given)

    real = row_lineage
    monkeypatch.setattr("rft_data.web.views.experiences.row_lineage", read)
    shown(page, "/s/run/rows/160")
    assert not left
    left.extend(OSError("gone for good") for _ in range(5))
    quiet = TestClient(page.app, raise_server_exceptions=False)
    answer = quiet.get("/s/run/rows/160")
    assert answer.status_code == 500
    assert "OSError: gone for good" in answer.text


def test_the_server_gives_way_to_a_run_on_the_same_machine(served: Served) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, served.process) == min(own + PRIORITY, 19)
