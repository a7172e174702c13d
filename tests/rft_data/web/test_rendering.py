"""A row as a function of its recipe shows it: whatever that does, the page stays whole."""

import html
import json
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from explorers.environments.gymnasium_text import GymnasiumText
from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.recipe.load import OWN_CODE_FILE, load_recipe
from rft_data.web.app import make_app
from rft_data.web.rendering import _shown, rendered
from rft_data.web.subjects import Subjects
from tests.rft_data.conftest import make_experience
from tests.rft_data.web.test_guard import HOSTILE, elements

RECIPE = Path(__file__).parents[3] / "recipes" / "frozen_lake.yaml"
RENDERERS = """
import atexit, os, sys, time

def text(row):
    print("loud", flush=True)
    return row["completion_text"] + " of " + row["metadata"]["city"]

def table(row): return [{"x": 1}, {"y": "<b>two</b>"}]
def hostile(row): return [{k: k for k in row["metadata"]["hostile"]}]
def thing(row): return object()
def big(row): return "x" * 2_000_000
def hungry(row): return str(len(bytearray(3 << 30)))
def wrong(row): raise KeyError("<script>no city</script>")
def leaves(row): sys.exit(4)

def lingers(row):
    atexit.register(time.sleep, 1.5)
    sys.exit(4)

def sleeps(row): time.sleep(60)
def ends_all(row): os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rendering") / "run"
    folder.mkdir()
    own = folder.parent / "own"
    own.mkdir()
    (own / "show.py").write_text(RENDERERS)
    (folder / OWN_CODE_FILE).write_text(str(own))
    row = make_experience(metadata={"city": "Rome", "hostile": [one[:500] for one in HOSTILE]})
    with Buffer(folder / "buffer") as buffer:
        buffer.append([row])
    return folder


def page(run: Path, name: str, *, renders: bool = True) -> TestClient:
    recipe = {"name": "run", "mode": "online", "explorer": {"render": name}}
    (run / "recipe.json").write_text(json.dumps(recipe))
    app = make_app(Subjects([str(run)]), None, "f", renders=renders)
    return TestClient(app, raise_server_exceptions=False)


def shown(run: Path, function: str) -> str:
    answer = page(run, f"show.py:{function}").get("/s/run/rows/0")
    assert answer.status_code == 200
    found = re.search(r"<h2>As <code>.*?<h2>Conversation", answer.text, re.DOTALL)
    assert found is not None
    return found[0]


def cells(text: str) -> list[list[str]]:
    lines = re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)
    return [re.findall(r"<t[hd]>(?:<pre>)?(.*?)(?:</pre>)?</t[hd]>", one, re.DOTALL) for one in lines]


@pytest.mark.slow
def test_texts_and_tables_are_shown(run: Path) -> None:
    assert "<pre>2 of Rome</pre>" in shown(run, "text")
    assert cells(shown(run, "table")) == [["x", "y"], ["1", ""], ["", "&lt;b&gt;two&lt;/b&gt;"]]


@pytest.mark.parametrize(
    ("made", "head", "rows"),
    [
        ({"a": 1, "b": ["x"]}, (), (("a", "1"), ("b", '["x"]'))),
        ([[1, "two"], []], (), (("1", "two"), ())),
        ([], (), ()),
    ],
)
def test_other_forms_are_tables_too(made: object, head: tuple[str, ...], rows: object) -> None:
    found = _shown("name", made)
    assert (found.head, found.rows, found.wrong) == (head, rows, "")


def test_tables_are_cut() -> None:
    found = _shown("name", [{str(n): n for n in range(60)}] * 500)
    assert (len(found.rows), len(found.rows[0]), len(found.head)) == (200, 20, 20)


@pytest.mark.parametrize("made", [7, None, [1, {"a": 2}], [["a"], {"a": 2}]])
def test_other_values_are_refused(made: object) -> None:
    assert "wanted a text, a mapping, or a list of rows" in _shown("name", made).wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("thing", "it returned object; wanted"),
        ("big", "it returned 2,000,012 bytes; at most 1,000,000"),
        ("hungry", "it needs more than 2 GiB of memory."),
        ("wrong", "KeyError: '<script>no city</script>'"),
        ("leaves", "its process ended with exit code 4."),
        ("lingers", "its process ended with exit code 4."),
        ("ends_all", "its process ended with signal SIGKILL."),
    ],
)
def test_what_goes_wrong_is_said_in_words(run: Path, function: str, words: str) -> None:
    text = shown(run, function)
    assert 'role="alert"' in text
    assert words in html.unescape(text)
    assert "<script>" not in text


@pytest.mark.slow
def test_one_that_does_not_end_is_ended(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rft_data.web.rendering.DEADLINE_S", 0.5)
    assert "it took longer than 0.5 s and was ended" in shown(run, "sleeps")


@pytest.mark.slow
def test_what_it_returns_acts_on_nothing(run: Path) -> None:
    found = elements(shown(run, "hostile"))
    assert {element[0] for element in found.found} <= {
        "h2",
        "code",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "pre",
    }
    assert found.links == set()


@pytest.mark.slow
def test_nothing_is_run_unless_it_is_asked_for(run: Path) -> None:
    text = page(run, "show.py:leaves", renders=False).get("/s/run/rows/0").text
    assert "<code>rft view --render</code> runs it" in html.unescape(text)
    assert "exit code" not in text


@pytest.mark.slow
def test_frozen_lake_shows_its_board(tmp_path: Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    made = gymnasium.make("FrozenLake-v1", desc=["SFF", "FHF", "FFG"], is_slippery=False, render_mode="ansi")
    world = GymnasiumText(made, {"l": 0, "d": 1, "r": 2, "u": 3})
    first = world.reset(Task("walks", ({"role": "user", "content": "go"},), metadata={"seed": 0}))
    second = world.step(world.action("r"))
    world.close()
    messages = [
        {"role": "user", "content": f"Walk 0: l, d, r or u?\n\n{first.text}"},
        {"role": "assistant", "content": "r"},
        {"role": "user", "content": second.text},
        {"role": "assistant", "content": "d"},
    ]
    found = rendered(tmp_path, "recipes.frozen_lake:board", {"messages": json.dumps(messages)})
    assert found.wrong == ""
    assert found.head == ("where", "said")
    assert found.rows == (("[S]FF\nFHF\nFFG", "r"), ("S[F]F\nFHF\nFFG", "d"))


def test_a_recipe_names_it_by_its_import_path() -> None:
    recipe = load_recipe(RECIPE)
    assert recipe.explorer.render == "recipes.frozen_lake:board"  # type: ignore[union-attr]
    with pytest.raises(RecipeError, match="renderer 'board' is not known"):
        load_recipe(RECIPE, ["explorer.render=board"])
