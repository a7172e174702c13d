"""The recipe form: what is typed becomes text, mistakes stand at their fields, runs start where they may."""

import html
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from rft_data.cli.app import app
from rft_data.core.errors import ConflictError, MissingFileError, RecipeError
from rft_data.recipe.shipped import shipped_recipe
from rft_data.web.app import make_app
from rft_data.web.body_limit import MOST_BYTES
from rft_data.web.recipe_form import MOST_CHARACTERS
from rft_data.web.starting import begin, planned
from rft_data.web.subjects import Subjects, folder_of_runs
from tests.rft_data.web.conftest import FORM_TOKEN
from tests.waiting import wait_for

HOSTILE = "</textarea><script>alert(1)</script>\u202e\u200d{{ 7 * 7 }}"


class Controls(HTMLParser):
    """The values of the controls of a page's last form, as a browser would send them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.buttons: list[str] = []
        self._area = self._select = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.values = {}
        elif tag == "input" and "name" in given:
            self.values[given["name"]] = given.get("value", "")
        elif tag == "textarea":
            self._area = given["name"]
            self.values[self._area] = ""
        elif tag == "select":
            self._select = given["name"]
            self.values[self._select] = ""
        elif tag == "option" and "selected" in given:
            self._area = self._select
        elif tag == "button":
            self.buttons.append(given.get("value", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("textarea", "option"):
            self._area = ""

    def handle_data(self, data: str) -> None:
        if self._area:
            first = self._area in ("text",) or self._area.startswith("f.")
            data = data.removeprefix("\n") if first and not self.values[self._area] else data
            self.values[self._area] += data


def sent(page: TestClient, values: dict[str, str], button: str, path: str = "/recipe") -> tuple[int, str]:
    form = {name: value.replace("\n", "\r\n") for name, value in values.items()}
    answer = page.post(path, data={**form, "do": button})
    return answer.status_code, answer.text


@pytest.fixture(scope="module")
def drawn(page: TestClient) -> dict[str, str]:
    """The controls of the form of quickstart."""
    answer = page.get("/recipe?start=quickstart")
    assert answer.status_code == 200, answer.text
    assert 'formaction="/recipe/run"' not in answer.text
    assert "Every random choice of the run follows from it" in answer.text
    assert "(at least 1)" in answer.text
    return Controls(answer.text).values


@pytest.mark.slow
def test_a_form_that_is_sent_back_unchanged_is_the_same_text(page: TestClient, drawn: dict[str, str]) -> None:
    answer = page.post("/recipe", data={**drawn, "do": "download"})
    assert answer.text == shipped_recipe("quickstart").path.read_text() == drawn["text"]
    assert answer.headers["content-disposition"] == 'attachment; filename="quickstart.yaml"'


@pytest.mark.slow
def test_mistakes_stand_at_their_fields_and_nothing_typed_is_lost(
    page: TestClient, drawn: dict[str, str]
) -> None:
    typed = {
        "f.explorer.group_size": "0",
        "f.stages.1.steps": f"[{HOSTILE}",
        "f.explorer.engine.use": HOSTILE,
        "f.experience_ops": f"- '{HOSTILE}'\n- rewrd_range_filter",
    }
    status, text = sent(page, {**drawn, **typed, "text": drawn["text"] + f"# {HOSTILE}\n"}, "check")
    assert status == 400
    assert "<script" not in text
    found = Controls(text).values
    assert {name: found[name] for name in typed if name != "f.experience_ops"} == {
        name: value for name, value in typed.items() if name != "f.experience_ops"
    }
    assert f"# {HOSTILE}\n" in found["text"]
    assert "steps: 40" in found["text"], "what is no YAML is not put into the text"
    for name, words in (
        ("f.explorer.group_size", "greater than or equal to 1"),
        ("f.stages.1.steps", "not valid yaml"),
        ("f.explorer.engine.use", "is not known"),
        ("f.experience_ops", "did you mean 'reward_range_filter'"),
    ):
        at = re.search(
            rf'name="{re.escape(name)}"[^>]*aria-invalid="true".*?<span class="quiet"', text, re.DOTALL
        )
        assert at is not None, name
        assert words in html.unescape(at[0]).lower(), name
    assert re.search(r"line \d+, column \d+: explorer.group_size", text)


@pytest.mark.slow
def test_explain_says_what_the_command_says(page: TestClient, drawn: dict[str, str]) -> None:
    status, text = sent(page, {**drawn, "f.seed": "5"}, "explain")
    assert status == 200
    command = ["recipe", "explain", "quickstart", "seed=5", "--json"]
    values = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)["values"]
    shown = re.search(r"<pre>(.*?)</pre>", text, re.DOTALL)
    assert shown is not None
    lines = html.unescape(shown[1]).splitlines()
    assert [f"{one['key']} = {json.dumps(one['value'], ensure_ascii=False)}" for one in values] == [
        line.partition("  # ")[0] for line in lines if not line.startswith("#")
    ]


@pytest.mark.slow
def test_what_is_too_large_or_not_of_this_page_is_refused(page: TestClient) -> None:
    form = {"form_token": FORM_TOKEN, "text": "name: a"}
    assert sent(page, {**form, "form_token": "x"}, "check")[0] == 403
    assert sent(page, {**form, "text": "x" * (MOST_CHARACTERS + 1)}, "check")[0] == 413
    assert sent(page, {**form, "text": "x" * MOST_BYTES}, "check")[0] == 413
    assert page.post("/recipe", content=iter([b"text=a"])).status_code == 413
    assert page.get("/recipe?start=../pyproject").status_code == 404
    many = {**form, **{f"f.{number}": "" for number in range(2_000)}}
    assert sent(page, many, "check")[0] == 400


def test_a_page_that_may_not_start_runs_starts_none(page: TestClient) -> None:
    form = {"form_token": FORM_TOKEN, "text": shipped_recipe("sums_grpo").path.read_text()}
    status, text = sent(page, form, "run", "/recipe/run")
    assert status == 403
    assert "--allow-run" in text


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[TestClient]:
    with Subjects([]) as subjects:
        yield TestClient(make_app(subjects, None, FORM_TOKEN, tmp_path), follow_redirects=False)


@pytest.mark.heavy
def test_a_run_is_started_after_its_command_was_shown(runner: TestClient, tmp_path: Path) -> None:
    """Of a recipe whose model is not there: the command says so and ends."""
    text = shipped_recipe("sums_dpo").path.read_text().replace("name: sums-dpo\n", "name: mine\n")
    form = {"form_token": FORM_TOKEN, "text": text, "drawn": text}
    status, shown = sent(runner, form, "run", "/recipe/run")
    assert status == 200, shown
    assert list(tmp_path.iterdir()) == []
    folder = tmp_path / "mine"
    assert f">rft run {folder}/form.yaml run_dir={folder}</pre>" in shown
    confirmed = Controls(shown).values
    changed = {**confirmed, "text": confirmed["text"] + "# more\n"}
    assert sent(runner, changed, "", "/recipe/run")[0] == 200, "another text is asked about again"
    assert list(tmp_path.iterdir()) == []
    assert sent(runner, confirmed, "", "/recipe/run")[0] == 303
    log = folder / "start.log"
    wait_for(lambda: "'runs/sums-grpo/stages/0-sft' is not there" in log.read_text())
    assert (folder / "form.yaml").read_text() == text
    assert "mine" in runner.get("/").text
    status, shown = sent(runner, confirmed, "", "/recipe/run")
    assert status == 400
    assert "is there already" in shown


def test_a_run_gets_a_folder_and_a_buffer_of_its_own(tmp_path: Path) -> None:
    places = {"mode": "online", "run_dir": "runs/a", "buffer": "runs/a/buffer"}
    start = planned(tmp_path, "mine", places)
    folder = tmp_path / "mine"
    assert start.arguments[1:] == (f"{folder}/form.yaml", f"run_dir={folder}", f"buffer.uri={folder}/buffer")
    shared = planned(tmp_path, "mine", {**places, "buffer": "runs/ab/buffer"})
    assert shared.arguments[2:] == (f"run_dir={folder}",)
    with pytest.raises(RecipeError, match="rft data run"):
        planned(tmp_path, "mine", {**places, "mode": "data"})
    folder.mkdir()
    for attempt in (lambda: planned(tmp_path, "mine", places), lambda: begin(start, "name: mine")):
        with pytest.raises(ConflictError, match="is there already"):
            attempt()
    assert list(folder.iterdir()) == []


def test_runs_are_started_in_a_folder_of_runs(runs: Path) -> None:
    assert folder_of_runs([str(runs / "library"), str(runs)]) == runs
    with pytest.raises(MissingFileError, match="no folder of runs is among"):
        folder_of_runs([str(runs / "run"), str(runs / "library")])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [None, "{"])
def test_a_run_that_has_not_written_its_recipe_yet_can_be_looked_at(
    tmp_path: Path, recipe: str | None
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "old" / "recipe.json").write_text('{"name": "old", "mode": "online"}')
    if recipe is not None:
        (tmp_path / "new" / "recipe.json").write_text(recipe)
    with Subjects([str(tmp_path / "old")]) as subjects:
        subjects.add(tmp_path / "new")
        page = TestClient(make_app(subjects, None, FORM_TOKEN), raise_server_exceptions=False)
        for path in ("/", "/s/new/try", "/compare?run=old&run=new"):
            assert page.get(path).status_code == 200, path
        assert page.get("/s/new").status_code == (404 if recipe is None else 200)
        assert page.get("/s/new/flow").status_code == 404
