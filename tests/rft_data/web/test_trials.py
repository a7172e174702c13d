"""Operators that are tried do what a dry run says, in a process of their own."""

import csv
import html
import io
import json
import re
from pathlib import Path
from urllib.parse import unquote_plus

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.errors import StalledError
from rft_data.core.filters import Compare
from rft_data.web import child_work
from rft_data.web.app import make_app
from rft_data.web.subjects import Subjects
from tests.rft_data.run.rejudge.explored import STRICT, explore
from tests.rft_data.web.conftest import FORM_TOKEN

TEXT = """\
- overlong_penalty_mapper: {max_tokens: 8, cache_tokens: 4}
- reward_variance_filter: {}  # as they come
"""


def tried(page: TestClient, key: str, **given: str) -> tuple[int, str]:
    """Status and place, or text, of the answer to a trial."""
    answer = page.post(f"/s/{key}/try", data={"form_token": FORM_TOKEN, **given})
    return answer.status_code, answer.headers.get("location", answer.text)


@pytest.mark.heavy
def test_a_trial_says_what_a_dry_run_of_its_recipe_says(page: TestClient, runs: Path, tmp_path: Path) -> None:
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        before = buffer.counts()
    status, place = tried(page, "run", text=TEXT.replace("\n", "\r\n"), where="reward >= 0", groups="2000")
    assert status == 303, place
    text = page.get(place).text
    saved = tmp_path / "tried.yaml"
    saved.write_text(page.get(f"{place}/recipe.yaml").text)
    assert "# as they come" in saved.read_text()
    location = str(runs / "run" / "buffer")
    command = ["data", "dry-run", str(saved), "--buffer", location, "--run", "small", "--json"]
    found = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)["first"]
    assert f"<h2>{found['kept']} of {found['rows']} rows kept, {found['dropped']} dropped" in text
    assert 0 < found["kept"] < found["rows"]
    for one in found["operators"]:
        numbers = "".join(f'<td class="n">{one[name]}</td>' for name in ("rows_in", "rows_out", "dropped"))
        assert f"<td>{one['name']}</td>{numbers}" in text
    assert "<dt>overlong_penalty_mapper</dt><dd>shaped_reward</dd>" in text
    rows = list(csv.DictReader(io.StringIO(page.get(f"{place}/tokens.csv").text)))
    assert sum(int(row["before"]) for row in rows) == found["rows"]
    assert sum(int(row["after"]) for row in rows) == found["kept"]
    dropped = re.search(r"dropped by reward_variance_filter</td>.*?</tr>", text, re.DOTALL)
    assert dropped is not None
    for seq in re.findall(r'href="/s/run/rows/(\d+)"', dropped[0]):
        assert page.get(f"/s/run/rows/{seq}").status_code == 200
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        assert buffer.counts() == before
    assert page.get(place.replace("/run/", "/library/")).status_code == 404
    assert page.get(f"{place}/seconds.csv").status_code == 404


@pytest.mark.slow
def test_what_was_typed_stays_beside_what_is_wrong(page: TestClient) -> None:
    typed = "- '</textarea><script>alert(1)</script>'\n- {{ 7 * 7 }}"
    status, text = tried(page, "library", text=typed, groups="3")
    assert status == 400
    assert "<script" not in text
    kept = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", text, re.DOTALL)
    assert kept is not None
    assert html.unescape(kept[1]) == typed
    assert "line 1, column 3: " in html.unescape(text)
    assert 'value="3"' in text


def test_a_trial_needs_the_form_and_bounds(page: TestClient) -> None:
    assert tried(page, "run", text=TEXT, form_token="x")[0] == 403  # noqa: S106
    assert tried(page, "run", text=TEXT, groups="2001")[0] == 422
    assert tried(page, "run", text="x" * 10_001)[0] == 422
    assert tried(page, "nobody", text=TEXT)[0] == 404


def test_a_third_trial_at_a_time_is_refused(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_work, "_free", child_work.BoundedSemaphore(1))
    monkeypatch.setattr(child_work, "_PATIENCE_S", 0)
    child_work._free.acquire()
    status, text = tried(page, "run", text=TEXT)
    assert status == 503
    assert "send this one again" in text
    assert "# as they come" in text


def test_a_trial_that_takes_too_long_is_killed(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rft_data.web.trials.DEADLINE_S", 0.01)
    status, text = tried(page, "run", text=TEXT)
    assert status == 503
    assert "did not end within 0.01 s and was killed" in text


@pytest.mark.slow
def test_a_child_that_dies_says_how() -> None:
    with pytest.raises(StalledError, match="the thing did not end"):
        child_work.ask("rft_data.run.trial.child", {}, deadline_s=0.01, what="the thing")
    with pytest.raises(child_work.RftError, match="ended with exit code 1 and no answer"):
        child_work.ask("rft_data.run.no_such_module", {}, deadline_s=30, what="the thing")


@pytest.mark.heavy
def test_what_a_trial_keeps_of_rejected_groups_is_readmitted_from_the_page(
    page: TestClient, runs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    recipe = json.loads((runs / "run" / "recipe.json").read_text())
    (run / "recipe.json").write_text(json.dumps({**recipe, "name": "run", "experience_ops": STRICT}))
    with Buffer(run / "buffer") as buffer:
        explore(buffer, [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    with Subjects([str(run)]) as subjects:
        own = TestClient(make_app(subjects, "me", FORM_TOKEN), follow_redirects=False)
        dropped = own.get("/s/run/groups/run/0-00000001").text
        wanted = re.search(r'href="/s/run/try\?where=([^"]+)"', dropped)
        assert wanted is not None
        where = unquote_plus(wanted[1])
        status, place = tried(own, "run", text="- grpo_advantage_mapper: {}\n", where=where)
        assert status == 303, place
        answer = own.post(f"{place}/readmit", data={"form_token": FORM_TOKEN})
        assert answer.status_code == 303, answer.text
        text = own.get(place).text
        assert "1 of 1 rejected groups are re-admitted (2 rows)" in text
        book = re.search(r"explored_by: (run-readmitted-\w+)</code>", text)
        assert book is not None
        rows = subjects.buffer("run").read("groups", None, Compare("run_id", "eq", book[1])).to_pylist()
        assert [(row["group_id"], row["seqs"]) for row in rows] == [("run/0-00000001", [2, 3])]
