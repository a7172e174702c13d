"""`${ref:...}` and `${env:...}`: what they stand for, what is stored of them, and which are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from rft_data.core import masking
from rft_data.core.errors import RecipeError
from rft_data.core.lookup import OWN_CODE
from rft_data.core.masking import masked
from rft_data.recipe.layers import read_layers
from rft_data.recipe.load import OWN_CODE_FILE, load_recipe, load_run, validate_recipe
from rft_data.recipe.references import Filled, filled
from tests.rft_data.run.test_online import write_recipe


def fill(folder: Path, text: str) -> Filled:
    path = folder / "r.yaml"
    path.write_text(text)
    return filled(read_layers(path))


def refused(folder: Path, text: str) -> dict[str, str]:
    """What is said of each value that cannot be filled in, by its key."""
    return {".".join(map(str, one.loc)): one.message for one in fill(folder, text).problems}


def test_a_whole_reference_has_the_type_of_what_it_names(tmp_path: Path) -> None:
    tree = fill(
        tmp_path,
        "a: {b: [1, {c: 2.5}], on: true}\nx: ${ref:a.b.1.c}\ny: ${ref:a}\nz: '${ref:x}'\n",
    ).tree
    assert tree["x"] == tree["z"] == 2.5
    assert tree["y"] == {"b": [1, {"c": 2.5}], "on": True}


def test_a_reference_inside_a_text_is_text(tmp_path: Path) -> None:
    tree = fill(
        tmp_path, "n: r\nk: 3\non: true\na: runs/${ref:n}-${ref:k}-${ref:on}\nb: ${ref:a}/buffer\n"
    ).tree
    assert tree["b"] == "runs/r-3-true/buffer"


def test_what_the_environment_gave_is_stored_as_a_reference_to_it_wherever_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFT_TEST_KEY", "a-secret-of-mine")
    found = fill(tmp_path, "n: '${env:RFT_TEST_KEY}'\nm: {a: '${ref:n}!', b: [plain]}\nl: ${ref:m}\n")
    assert found.tree["l"] == {"a": "a-secret-of-mine!", "b": ["plain"]}
    assert found.from_env == {
        ("n",): "${env:RFT_TEST_KEY}",
        ("m", "a"): "${env:RFT_TEST_KEY}!",
        ("l", "a"): "${env:RFT_TEST_KEY}!",
    }


def test_a_stored_recipe_holds_no_secret_that_was_referred_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFT_TEST_KEY", "a-secret-of-mine")
    changes = [
        "explorer.workflow={use: single_turn, args: {system: 'Say ${env:RFT_TEST_KEY}.'}}",
        "run_dir=${ref:explorer.workflow.args.system}",
        "name=x",
    ]
    saved: Any = load_recipe(write_recipe(tmp_path), changes).saved()
    assert saved["run_dir"] == saved["explorer"]["workflow"]["args"]["system"] == "Say ${env:RFT_TEST_KEY}."


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("seed: 1\nx: ${ref:sed}\n", "x", "nothing is written at 'sed', .* did you mean 'seed'"),
        ("x: [1]\ny: ${ref:x.one}\n", "y", "nothing is written at 'x.one'"),
        ("x: ${ref:y}\ny: ${ref:x}\n", "x", "in a circle: y -> x -> y"),
        ("x: a${ref:y}\ny: b${ref:x}\n", "y", "in a circle: x -> y -> x"),
        ("x: {y: '${ref:x}'}\n", "x.y", "in a circle: x -> x"),
        ("x: [1]\ny: a ${ref:x}\n", "y", "is a list, which cannot stand inside a text"),
        ("x: ${env:RFT TEST}\n", "x", "'\\${env:RFT TEST}' is no reference; write"),
        ("x: ${env:RFT_NOT_SET}\ny: ${ref:x}\n", "y", "environment variable RFT_NOT_SET is not set"),
        ("a: '${env:RFT_NOT_SET:-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}'\n" + "".join(
            f"{b}: ${{ref:{a}}}${{ref:{a}}}\n" for a, b in zip("abcdefghijkl", "bcdefghijklm", strict=True)
        ), "m", "more than 65536 characters"),
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere_is_a_mistake_at_its_place(
    tmp_path: Path, text: str, key: str, message: str
) -> None:
    found = refused(tmp_path, text)
    with pytest.raises(ValueError, match=message):
        raise ValueError(found[key])


def test_references_cannot_stand_for_millions_of_values(tmp_path: Path) -> None:
    lines = ["a: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for before, name in zip("abcdef", "bcdefg", strict=True):
        lines.append(f"{name}: [" + ", ".join([f"'${{ref:{before}}}'"] * 10) + "]")
    with pytest.raises(RecipeError, match=r"r\.yaml stand for more than 20000 values"):
        fill(tmp_path, "\n".join(lines))


def test_a_mistake_has_one_line_with_its_file_and_line(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    path.write_text(path.read_text().replace("max_tokens: 8", "max_tokens: ${ref:explorer.max_token}"))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert "small.yaml:" in lines[0]
    assert "explorer.max_tokens: nothing is written at 'explorer.max_token'" in lines[0]


def test_a_path_that_begins_with_a_dot_is_seen_from_its_file_first_and_others_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base" / "in").mkdir(parents=True)
    (tmp_path / "over").mkdir()
    for name in ("here.jsonl", "base/here.jsonl", "base/in/there.jsonl", "over/o.jsonl"):
        (tmp_path / name).write_text("")
    (tmp_path / "base" / "b.yaml").write_text(
        "a: {path: here.jsonl}\nb: {path: ./here.jsonl}\nc: {path: in/there.jsonl}\nd: {path: o.jsonl}\n"
        "e: {path: '${env:RFT_NOT_SET:-in}/there.jsonl'}\nf: ${ref:c}\n"
    )
    (tmp_path / "over" / "r.yaml").write_text(
        "extends: ../base/b.yaml\ng: {path: o.jsonl}\nh: ${ref:b}\ni: {path: ./gone.jsonl}\n"
    )
    tree = filled(read_layers(Path("over/r.yaml"), ["j={path: base/here.jsonl}"])).tree
    assert {key: one["path"] for key, one in tree.items()} == {
        "a": "here.jsonl", "b": "base/here.jsonl", "c": "base/in/there.jsonl", "d": "o.jsonl",
        "e": "base/in/there.jsonl", "f": "base/in/there.jsonl", "g": "over/o.jsonl", "h": "base/here.jsonl",
        "i": "./gone.jsonl", "j": "base/here.jsonl",
    }  # fmt: skip


def test_a_split_of_a_folder_that_is_imported_is_seen_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base" / "saved").mkdir(parents=True)
    (tmp_path / "base" / "r.yaml").write_text(
        "imports: [{path: 'saved:train'}, {path: 'gone:train'}, {path: 'hf://org/name:train'}]\n"
        "tasks: [{path: 'saved:train'}]\n"
    )
    tree: Any = filled(read_layers(Path("base/r.yaml"))).tree
    paths = [one["path"] for one in tree["imports"]]
    assert paths == ["base/saved:train", "gone:train", "hf://org/name:train"]
    assert tree["tasks"][0]["path"] == "saved:train", "a taskset has a key 'split'"


@pytest.mark.parametrize("name", ["countdown", "gsm8k_data"])
def test_a_shipped_recipe_finds_its_samples_from_anywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN_CODE, "")
    monkeypatch.delenv("RFT_GSM8K_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"extends: {name}\nname: mine\n")
    recipe: Any = validate_recipe(tmp_path / "mine.yaml")
    for taskset in recipe.tasks:
        assert Path(taskset.source.path).is_file()


def test_a_stored_recipe_finds_what_the_environment_names_where_it_was_found_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "project"
    (beside / "in").mkdir(parents=True)
    (beside / "in" / "rows.jsonl").write_text("")
    monkeypatch.setenv(OWN_CODE, "")
    monkeypatch.chdir(tmp_path)
    source = "{use: jsonl, path: '${env:RFT_NOT_SET:-in}/rows.jsonl'}"
    path = write_recipe(beside)
    changes = [f"tasks.0.source={source}", f"run_dir={tmp_path}/run"]
    saved = load_recipe(path, changes).saved()
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(saved))
    (folder / OWN_CODE_FILE).write_text(str(beside))
    again: Any = load_run(folder)
    assert again.tasks[0].source.path == "project/in/rows.jsonl"
    assert again.saved() == saved, "it is stored as a reference"


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("model: {path: '${env:RFT_GIVEN}'}", "./nothere", True),
        ("model: {path: '${env:RFT_GIVEN:-none}'}", "Qwen/Qwen2.5-7B", True),
        ("tasks: [{source: {use: file, path: '${env:RFT_GIVEN}/train.jsonl'}}]", "hf://org/data@main", True),
        ("models: [one, '${env:RFT_GIVEN}']", "checkpoints/last", True),
        ("run_dir: 'runs/${env:RFT_GIVEN}'", "tuesday", True),
        ("explorer: {reward: [{use: '${env:RFT_GIVEN}'}]}", "./nothere.py:score", True),
        ("explorer: {reward: [{use: '${env:RFT_GIVEN}'}]}", "a-secret-of-mine", False),
        ("explorer: {reward: [{use: x, args: {key: '${env:RFT_GIVEN}'}}]}", "a-secret-of-mine", False),
        ("explorer: {workflow: {use: served, args: {token: '${env:RFT_GIVEN}'}}}", "a-secret-of-mine", False),
        ("run_dir: ${ref:name}\nname: '${env:RFT_GIVEN}'", "a-secret-of-mine", False),
        ("model: {path: '${env:RFT_GIVEN}'}\nname: 'a ${env:RFT_GIVEN}'", "a-secret-of-mine", False),
        ("buffer: {uri: '${env:RFT_GIVEN}'}", "runs/one/buffer", True),
        ("buffer: {uri: 's3://${env:RFT_GIVEN}@host/a'}", "user:a-secret-of-mine", False),
        ("buffer: {uri: 's3://host/a?key=${env:RFT_GIVEN}'}", "a-secret-of-mine", False),
    ],
)
def test_paths_and_ids_from_the_environment_are_shown_and_all_else_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: str, shown: bool
) -> None:
    for name, empty in (("_values", {}), ("_hidden", {}), ("_pattern", None)):
        monkeypatch.setattr(masking, name, empty)
    monkeypatch.setenv("RFT_GIVEN", value)
    fill(tmp_path, text)
    assert masked(f"found {value}") == (f"found {value}" if shown else "found ${env:RFT_GIVEN}")
    filled(read_layers(tmp_path / "r.yaml"), foreign=True)
    assert masked(f"found {value}") == "found ${env:RFT_GIVEN}"
