"""A recipe from a request is checked without running, reading or showing what is not the request's."""

import json
from pathlib import Path

import pytest

from rft_data.core.masking import masked
from rft_data.recipe.form.submission import Answer, worked_on
from rft_data.recipe.load import check_text
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.shipped import shipped_recipe

TEXT = shipped_recipe("sums_grpo").path.read_text()


def answer(text: str, fields: dict[str, str] | None = None, *, explain: bool = False) -> Answer:
    return worked_on({"text": text, "drawn": text, "fields": fields or {}, "explain": explain})


def said(found: Answer) -> str:
    """All that the process of a form answers."""
    return masked(json.dumps(found))


@pytest.mark.slow
def test_fields_are_put_into_the_text_and_checked() -> None:
    found = answer(TEXT, {"explorer.group_size": "1", "name": "mine"})
    assert "name: mine" in found["text"]
    [mistake] = found["mistakes"]
    assert (mistake["key"], found["name"]) == ("explorer.group_size", "")
    assert found["text"].splitlines()[mistake["line"] - 1].strip().startswith("group_size: 1")
    good = answer(found["text"], {"explorer.group_size": "4"}, explain=True)
    assert (good["mistakes"], good["name"], good["places"]["mode"]) == ([], "mine", "online")
    assert any(line.startswith("explorer.group_size = 4  # recipe.yaml:") for line in good["explained"])


@pytest.mark.slow
def test_the_text_and_the_fields_may_both_be_changed() -> None:
    found = worked_on(
        {
            "text": TEXT + "# mine\n",
            "drawn": TEXT,
            "fields": {"seed": "9", "name": "sums-grpo"},
            "explain": False,
        }
    )
    assert found["text"].endswith("# mine\n")
    assert "\nseed: 9" in found["text"]


@pytest.mark.slow
def test_code_that_a_recipe_names_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(ran)!r}, 'w')\nPRESET = Reward = None\n")
    own = f"{tmp_path}/mine.py"
    text = TEXT.replace("algorithm: grpo", f"algorithm: '{own}:PRESET'")
    assert own in text
    for one in (
        text,
        TEXT.replace("algorithm: grpo", "algorithm: '${ref:name}'").replace("name: ", "name: mine:X #"),
    ):
        found = answer(one, explain=True)
        assert found["explained"] == []
        assert found["mistakes"]
    answer(
        TEXT, {"explorer.reward.0.use": f"{own}:Reward", "experience_ops": f"- {own}:Reward"}, explain=True
    )
    assert not ran.exists()


@pytest.mark.slow
def test_files_are_not_read_and_not_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there.yaml").write_text("name: secret\n")
    monkeypatch.chdir(tmp_path)
    for extended in (
        "there.yaml",
        str(tmp_path / "there.yaml"),
        "[there.yaml]",
        "[3]",
        "../recipes/quickstart",
    ):
        found = answer(f"extends: {extended}\nname: x\n", explain=True)
        assert "is not the name of a shipped recipe" in found["mistakes"][0]["message"]
        assert "secret" not in said(found)
    explained = {}
    for name in ("there.yaml", "gone.yaml"):
        fields = {"model.path": f"../{tmp_path.name}/{name}", "model.build.use": ""}
        found = answer(TEXT, fields, explain=True)
        explained[name] = [line.replace(name, "") for line in (*found["explained"], str(found["mistakes"]))]
    assert explained["there.yaml"] == explained["gone.yaml"]


@pytest.mark.slow
def test_paths_stay_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "recipe.yaml"
    file.write_text(answer(TEXT, {"model.path": "./model", "model.build.use": ""})["text"])
    monkeypatch.chdir(tmp_path / "elsewhere")
    recipe = check_text(file)
    assert isinstance(recipe, OnlineRecipe)
    assert recipe.model.path == "./model"


@pytest.mark.slow
def test_a_shipped_recipe_may_be_extended() -> None:
    found = answer("extends: sums_grpo\nname: mine\n", explain=True)
    assert found["name"] == "mine"
    fields = {field["key"]: field for part in found["parts"] for field in part["fields"]}
    assert fields["stages"]["default"] or fields["stages.0.steps"]["default"]


@pytest.mark.slow
def test_values_of_the_environment_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2-hunter2")
    for key in ("run_dir", "seed", "selector.use", "explorer.engine.use", "name"):
        found = answer(TEXT, {key: "${env:A_SECRET}"}, explain=True)
        assert "hunter2" not in said(found), key
        assert "${env:A_SECRET}" in found["text"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("- a", "not a map"),
        ("a: [b", "not valid YAML"),
        ("a: &a [x, x]\nb: &b [" + "*a, " * 99 + "]\nc: [" + "*b, " * 400 + "]", "more than 20000 values"),
        ("a: " + "[" * 70, "lie inside each other"),
        ("mode: [online]", "one of"),
        ("mode: {a: b}\nstages: {1: 2}", "one of"),
        ("name: a\nname: b", "not valid YAML"),
        ("{{ 7 * 7 }}: 1", ""),
    ],
)
def test_what_is_no_recipe_is_said_in_words(text: str, words: str) -> None:
    found = answer(text, {"name": "x"})
    assert any(words in mistake["message"] for mistake in found["mistakes"])
    assert found["name"] == ""
