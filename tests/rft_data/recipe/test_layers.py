"""Recipes that extend others, overlays, changes of the command line: what comes of them, who wrote what."""

from pathlib import Path

import pytest

from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.recipe.explain import values
from rft_data.recipe.layers import Written, read_layers
from rft_data.recipe.load import load_recipe
from tests.rft_data.run.test_online import write_recipe

BASE = """\
name: base
seed: 1
explorer:
  max_tokens: 8
  reward: [{use: exact_answer}]
stages:
  - {algorithm: sft, epochs: 1}
  - {algorithm: grpo, steps: 3}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    return tmp_path


def over(folder: Path, text: str, *changes: str, name: str = "over.yaml") -> Written:
    (folder / name).write_text(text)
    return read_layers(folder / name, changes)


def test_maps_are_merged_and_anything_else_is_replaced(folder: Path) -> None:
    tree = over(
        folder,
        "extends: base.yaml\nname: mine\nexplorer: {max_tokens: 9, reward: [{use: number}]}\n"
        "sync: {every: 2}\n",
    ).tree
    assert tree["name"] == "mine"
    assert tree["seed"] == 1
    assert tree["explorer"] == {"max_tokens": 9, "reward": [{"use": "number"}]}
    assert tree["sync"] == {"every": 2}
    assert "extends" not in tree


def test_entries_of_a_list_can_be_changed_by_number(folder: Path) -> None:
    tree = over(folder, "extends: base.yaml\nstages: {1: {steps: 7}}\n").tree
    assert tree["stages"] == [{"algorithm": "sft", "epochs": 1}, {"algorithm": "grpo", "steps": 7}]
    tree = over(folder, "extends: base.yaml\nstages: {~0: , 0: {steps: 7}}\n", "~stages.0.algorithm").tree
    assert tree["stages"] == [{"steps": 7}]
    with pytest.raises(RecipeError, match=r"over\.yaml:2:10 stages\.2: there is no entry 2 of 2, from 0"):
        over(folder, "extends: base.yaml\nstages: {2: {steps: 7}}\n")


def test_a_tilde_deletes_a_key_and_an_entry(folder: Path) -> None:
    tree = over(folder, "extends: base.yaml\n~seed:\nexplorer: {~reward: }\n", "~stages.0").tree
    assert tree == {
        "name": "base",
        "explorer": {"max_tokens": 8},
        "stages": [{"algorithm": "grpo", "steps": 3}],
    }
    replaced = over(folder, "extends: base.yaml\n~explorer:\nexplorer: {max_tokens: 1}\n").tree
    assert replaced["explorer"] == {"max_tokens": 1}


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        ("~sed:\n", "", r"over\.yaml:2:1 sed: there is nothing to delete; did you mean 'seed'\?"),
        ("~seed: 3\n", "", r"over\.yaml:2:1 .*'~seed' deletes a key and takes no value; found 3"),
        ("", "~explorer.rewrd", r"command line explorer\.rewrd: .*did you mean 'reward'"),
        ("", "~stages.9", r"command line stages\.9: there is nothing to delete"),
        (
            "",
            "~explorer.x.y",
            r"'~explorer\.x\.y': there is no .* to delete; explorer has max_tokens, reward",
        ),
        ("", "stages.9.steps=3", r"there is no 'stages\.9\.steps' .* to set; 'stages' has 2 entries, from 0"),
        ("", "seed.x=3", r"there is no 'seed\.x' in the recipe to set; 'seed' is no map and no list"),
        ("", "ovr.yaml", "there is no recipe at ovr.yaml"),
        ("", "quikstart.yaml", "there is no recipe at quikstart.yaml; did you mean 'quickstart'"),
        ("", "nowhere.yaml", "there is no recipe at nowhere.yaml"),
    ],
)
def test_what_cannot_be_deleted_or_read_is_one_error(
    folder: Path, text: str, change: str, message: str
) -> None:
    with pytest.raises((RecipeError, MissingFileError), match=message):
        over(folder, f"extends: base.yaml\n{text}", *([change] if change else []))


@pytest.mark.parametrize(
    ("base", "own", "change", "said"),
    [
        ("2", "1", "", r"base\.yaml:1:1 recipe: found 2; rft-data .* reads formats up to 1: install a later"),
        ("'0.9'", "1", "", r"base\.yaml:1:1 recipe: found '0\.9'; 1 is the only format that there has been"),
        ("1", "2", "", r"over\.yaml:2:1 recipe: found 2"),
        ("1", "1", "newer.yaml", r"newer\.yaml:1:1 recipe: found 3"),
        ("1", "1", "recipe=4", r"command line recipe: found 4"),
    ],
)
def test_no_layer_is_of_a_format_that_is_not_read(
    folder: Path, base: str, own: str, change: str, said: str
) -> None:
    (folder / "base.yaml").write_text(f"recipe: {base}\n{BASE}")
    (folder / "newer.yaml").write_text("recipe: 3\n")
    (folder / "over.yaml").write_text(f"extends: base.yaml\nrecipe: {own}\n")
    changes = [str(folder / change) if change.endswith(".yaml") else change] if change else []
    with pytest.raises(RecipeError, match=said):
        load_recipe(folder / "over.yaml", changes)


def test_each_value_knows_the_file_that_wrote_it(folder: Path) -> None:
    (folder / "third.yaml").write_text("explorer:\n  max_tokens: 3\n")
    written = over(
        folder,
        "extends: base.yaml\nexplorer:\n  temperature: 0.5\n",
        str(folder / "third.yaml"),
        "stages.1.steps=9",
        "~stages.0",
    )
    found = {key: written.origins.find(key).short for key in (
        ("name",), ("explorer", "temperature"), ("explorer", "max_tokens"), ("explorer", "reward", 0, "use"),
        ("stages", 0, "algorithm"), ("stages", 0, "steps"), ("no", "such"),
    )}  # fmt: skip
    assert list(found.values()) == [
        f"{folder}/base.yaml:1", f"{folder}/over.yaml:3", f"{folder}/third.yaml:2", f"{folder}/base.yaml:5",
        f"{folder}/base.yaml:8", "command line", f"{folder}/over.yaml:1",
    ]  # fmt: skip
    assert [path.name for path in written.files] == ["base.yaml", "over.yaml", "third.yaml"]


def test_a_file_that_several_extend_counts_once_where_it_comes_first(folder: Path) -> None:
    (folder / "one.yaml").write_text("extends: base.yaml\nseed: 11\n")
    (folder / "two.yaml").write_text("extends: base.yaml\nname: two\n")
    tree = over(folder, "extends: [one.yaml, two.yaml]\n").tree
    assert (tree["seed"], tree["name"]) == (11, "two"), "two.yaml does not bring back the seed of base.yaml"


@pytest.mark.slow
def test_paths_are_from_the_file_that_wrote_them_and_names_are_of_shipped_recipes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "below").mkdir()
    monkeypatch.chdir("/")
    tree = over(folder, "extends: [quickstart, ../base.yaml]\n", name="below/over.yaml").tree
    assert (tree["mode"], tree["name"]) == ("online", "base")
    (folder / "quickstart").write_text("seed: 5\n")
    assert over(folder, "extends: quickstart\n").tree == {"seed": 5}, "a file comes first"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nextends: bas.yaml\n", r"over\.yaml:2:1 extends: 'bas\.yaml' is neither .* 'base\.yaml'\?"),
        ("extends: quickstrat\n", r"over\.yaml:1:1 extends: .*did you mean 'quickstart'"),
        ("extends: 3\n", r"over\.yaml:1:1 extends: found 3; wanted the file or name"),
        ("extends: over.yaml\n", r"extends: a circle: \S+over\.yaml -> \S+over\.yaml"),
        (
            "extends: circle.yaml\n",
            r"circle\.yaml:1:1 extends: a circle: \S+over.yaml -> \S+circle.yaml -> \S+over",
        ),
    ],
)
def test_a_missing_parent_and_a_circle_are_one_error_with_its_place(
    folder: Path, text: str, message: str
) -> None:
    (folder / "circle.yaml").write_text("extends: [over.yaml]\n")
    with pytest.raises(RecipeError, match=message) as refused:
        over(folder, text)
    assert len(str(refused.value).splitlines()) == 2


def test_mistakes_are_named_with_the_file_that_made_them_the_named_one_first(tmp_path: Path) -> None:
    base = write_recipe(tmp_path)
    (tmp_path / "a_base.yaml").write_text(base.read_text().replace("name: small", "sed: 3\nname: small"))
    (tmp_path / "over.yaml").write_text("extends: a_base.yaml\nexplorer:\n  group_size: two\n")
    with pytest.raises(RecipeError) as refused:
        load_recipe(tmp_path / "over.yaml", ["stages.0.epoch=1"])
    head, first, second, third = str(refused.value).splitlines()
    assert head == f"{tmp_path}/over.yaml is not a valid recipe:"
    assert first.startswith(
        f"  {tmp_path}/over.yaml:3:3 explorer.group_size: found 'two'; it should be a valid integer"
    )
    assert second.startswith(f"  {tmp_path}/a_base.yaml:")
    assert "sed: unknown key; did you mean 'seed'?" in second
    assert third.startswith("  command line stages.0.epoch: unknown key")


@pytest.mark.slow
def test_a_recipe_that_extends_another_loads_and_explains_itself(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    path = tmp_path / "over.yaml"
    path.write_text("extends: small.yaml\nname: other\n~experts:\nstages:\n  ~0:\n  0: {steps: 2}\n")
    found = {one.key: one for one in values(path, ["seed=5"])}
    assert (found["name"].value, found["name"].origin) == ("other", f"{path}:2")
    assert (found["stages.0.steps"].value, found["stages.0.steps"].origin) == (2, f"{path}:6")
    assert found["stages.0.algorithm"].origin.startswith(f"{tmp_path}/small.yaml:")
    assert (found["seed"].origin, found["op_limits"].origin) == ("command line", "default")


def test_the_example_of_the_page_is_a_recipe(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "recipe.md").read_text()
    (tmp_path / "mine.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    recipe = load_recipe(tmp_path / "mine.yaml")
    assert (recipe.name, recipe.buffer.uri) == ("mine", "runs/mine/buffer")
    assert "evaluation" not in recipe.saved()
    assert recipe.saved()["stages"][1]["steps"] == 40  # type: ignore[index]


def test_a_file_read_again_is_as_it_was_and_one_that_changed_is_read_anew(folder: Path) -> None:
    path = folder / "base.yaml"
    before = read_layers(path)
    changed = read_layers(path, ["explorer.reward.0.use=number", "~stages.0", "explorer.max_tokens=9"])
    assert changed.tree["explorer"] == {"max_tokens": 9, "reward": [{"use": "number"}]}
    again = read_layers(path)
    assert again.tree == before.tree
    assert again.origins.find(("explorer", "reward")) == before.origins.find(("explorer", "reward"))
    path.write_text(BASE.replace("seed: 1", "seed: 2"))
    assert read_layers(path).tree["seed"] == 2
