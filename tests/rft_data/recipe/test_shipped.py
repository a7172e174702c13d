"""Shipped recipes: found by name, copied with what they name, compared, and described by a JSON Schema."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from rft_data.core.errors import RecipeError, UnknownComponentError
from rft_data.recipe.copying import SCHEMA_FILE, copy_recipe
from rft_data.recipe.difference import differences
from rft_data.recipe.json_schema import recipe_schema
from rft_data.recipe.load import check_recipe, load_recipe, validate_recipe
from rft_data.recipe.modes import MODES
from rft_data.recipe.section import Section
from rft_data.recipe.shipped import FACTS, ShippedRecipe, shipped_folder, shipped_recipe, shipped_recipes
from rft_data.run.outlook.lines import outlook_lines

ROOT = Path(__file__).parents[3]
SHIPPED = shipped_recipes()


def named(name: str) -> ShippedRecipe:
    return next(one for one in SHIPPED if one.name == name)


def test_every_recipe_file_is_found_by_name_and_says_what_it_does() -> None:
    assert {one.path.name for one in SHIPPED} == {path.name for path in (ROOT / "recipes").glob("*.yaml")}
    assert all(one.about.endswith(".") and len(one.about) > 20 for one in SHIPPED)
    assert named("quickstart").about == "Reinforcement fine-tuning end to end on a laptop CPU."


@pytest.mark.parametrize("one", SHIPPED, ids=lambda one: one.name)
def test_header_says_for_whom_what_it_needs_and_how_long_it_takes(one: ShippedRecipe) -> None:
    assert list(one.facts) == list(FACTS)


def test_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UnknownComponentError, match="'quickstrat'; did you mean 'quickstart'\\?"):
        shipped_recipe("quickstrat")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the recipes read of the environment without a default."""
    for one in SHIPPED:
        for name in re.findall(r"\$\{env:(\w+)\}", one.path.read_text()):
            monkeypatch.setenv(name, "given")


OF_EARLIER_RUNS = re.compile(r"runs/[\w-]+/(?:stages|checkpoints)/[\w*-]+")
"""Model folders that recipes take from runs before them."""


@pytest.fixture
def what_a_user_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A working directory with what recipes ask for: data, a model, models of earlier runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    found = {name for one in SHIPPED for name in OF_EARLIER_RUNS.findall(one.path.read_text())}
    for folder in ("model", *(name.replace("*", "1") for name in found)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
        (tmp_path / folder / "tokenizer.json").touch()
    for name in ("train.jsonl", "test.jsonl", "example_model_solutions.jsonl", "mbpp.jsonl"):
        (tmp_path / name).touch()
    monkeypatch.setenv("RFT_MODEL", "./model")
    monkeypatch.setenv("RFT_GSM8K_DIR", str(tmp_path))
    monkeypatch.setenv("RFT_MBPP_FILE", "mbpp.jsonl")


@pytest.mark.usefixtures("environment", "what_a_user_has")
@pytest.mark.parametrize("one", SHIPPED, ids=lambda one: one.name)
def test_every_recipe_is_valid_where_there_is_what_its_header_asks_for(one: ShippedRecipe) -> None:
    validate_recipe(one.path)


def test_headers_name_recipes_and_files_that_there_are() -> None:
    for one in SHIPPED:
        for name in re.findall(r"\brecipes/[\w/]+\.(?:yaml|py|jsonl)", one.path.read_text()):
            assert (ROOT / name).is_file(), f"{one.name}: {name}"


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("one", SHIPPED, ids=lambda one: one.name)
def test_copy_names_nothing_of_the_package_and_is_the_same_recipe(one: ShippedRecipe, tmp_path: Path) -> None:
    written = copy_recipe(one.name, tmp_path)
    text = written[0].read_text()
    assert "recipes." not in text
    assert "recipes/" not in text
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA_FILE}\n")
    assert all(
        path.read_text() == next(shipped_folder().rglob(path.name)).read_text()
        for path in written[1:]
        if path.suffix == ".py"
    )
    moved = {found.key for found in differences(check_recipe(one.path), check_recipe(written[0]))}
    own = [
        key for key in moved if not key.endswith((".use", ".path", ".algorithm", ".render", ".environment"))
    ]
    assert [key for key in own if ".py:" not in key and "recipes." not in key] == []  # but operators' names


@pytest.mark.heavy
@pytest.mark.usefixtures("environment", "what_a_user_has")
def test_every_recipe_says_what_it_would_come_to() -> None:
    for one in SHIPPED:
        recipe = load_recipe(one.path)
        found = {line.split(maxsplit=1)[0] for line in outlook_lines(recipe, "80GB")}
        assert found >= {"memory", "contacts"}, one.name
        assert ("folder" in found) is hasattr(recipe, "run_dir"), one.name


def test_copy_brings_the_program_that_a_header_says_to_start(tmp_path: Path) -> None:
    copy_recipe("sums_feedback", tmp_path)
    assert (tmp_path / "rater.py").read_text() == (ROOT / "recipes" / "rater.py").read_text()
    assert "python rater.py" in (tmp_path / "sums_feedback.yaml").read_text()


@pytest.mark.slow
def test_copy_overwrites_nothing_and_then_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "arithmetic.py").write_text("mine")
    with pytest.raises(RecipeError, match=r"arithmetic\.py is there already, with another content"):
        copy_recipe("quickstart", tmp_path / "new.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["arithmetic.py"]
    (tmp_path / "arithmetic.py").unlink()
    assert copy_recipe("quickstart", tmp_path / "new.yaml") == copy_recipe(
        "quickstart", tmp_path / "new.yaml"
    )
    assert "rft run new.yaml" in (tmp_path / "new.yaml").read_text()


def test_differences_are_of_values_after_presets_and_defaults() -> None:
    path = named("quickstart").path
    found = list(
        differences(load_recipe(path, ["seed=0"]), load_recipe(path, ["seed=3", "explorer.stop=[x]"]))
    )
    assert {one.key: one.values for one in found} == {
        "seed": {"left": 0, "right": 3},
        "explorer.stop.0": {"right": "x"},
    }
    dapo = {one.key for one in differences(load_recipe(path), load_recipe(path, ["stages.1.algorithm=dapo"]))}
    assert "stages.1.algorithm" in dapo
    assert any(key.startswith("experience_ops") for key in dapo)


@pytest.mark.slow
def test_entries_of_lists_are_compared_by_their_names(tmp_path: Path) -> None:
    path = named("quickstart").path  # its stages: sft, grpo
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    grpo = "{algorithm: grpo, groups_per_step: 8, steps: 4}"
    one.write_text(f"extends: quickstart\nstages: [{grpo}]\n")
    other.write_text("extends: one.yaml\nstages: [{algorithm: sft}, " + grpo.replace("4", "9") + "]\n")
    found = {diff.key: diff for diff in differences(load_recipe(one), load_recipe(other))}
    assert set(found) == {"stages[grpo].steps", "stages[sft].algorithm", "stages[sft].data"} | {
        key for key in found if key.startswith("stages[sft].")
    }
    assert found["stages[grpo].steps"].values == {"left": 4, "right": 9}
    assert found["stages[grpo].steps"].places == {"left": "stages.0.steps", "right": "stages.1.steps"}
    assert found["stages[sft].algorithm"].values == {"right": "sft"}
    operators = (
        "[{reward_range_filter: {min_reward: 0}}, {reward_variance_filter: {}}, {grpo_advantage_mapper: {}}]"
    )
    swapped = (
        "[{reward_variance_filter: {}}, {reward_range_filter: {min_reward: 1}}, {grpo_advantage_mapper: {}}]"
    )
    left, right = (load_recipe(path, [f"experience_ops={one}"]) for one in (operators, swapped))
    assert {one.key: one.values for one in differences(left, right)} == {
        "experience_ops (order)": {
            "left": ["reward_range_filter", "reward_variance_filter", "grpo_advantage_mapper"],
            "right": ["reward_variance_filter", "reward_range_filter", "grpo_advantage_mapper"],
        },
        "experience_ops[reward_range_filter].reward_range_filter.min_reward": {"left": 0, "right": 1},
    }


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    found = recipe_schema()
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


def tree(path: Path) -> object:
    return json.loads(json.dumps(YAML(typ="safe", pure=True).load(path.read_text())))


@pytest.mark.parametrize("one", SHIPPED, ids=lambda one: one.name)
def test_schema_lets_shipped_recipes_through(
    one: ShippedRecipe, schema: jsonschema.Draft202012Validator
) -> None:
    schema.validate(tree(one.path))


@pytest.mark.parametrize(
    "wrong", [{"sed": 1}, {"seed": "one"}, {"mode": "onlin"}, {"explorer": {"group_size": 2}}], ids=str
)
def test_schema_refuses_what_validate_refuses(
    wrong: dict[str, object], schema: jsonschema.Draft202012Validator
) -> None:
    good = tree(named("quickstart").path)
    assert isinstance(good, dict)
    assert schema.is_valid({**good, "seed": "${env:SEED:-1}"})
    assert schema.is_valid({**good, "experience_ops": ["grpo_advantage_mapper"]})
    assert not schema.is_valid({**good, "experience_ops": [["grpo_advantage_mapper"]]})
    assert not schema.is_valid({**good, **wrong})


def test_schema_checks_of_a_file_that_extends_others_only_their_names(
    schema: jsonschema.Draft202012Validator,
) -> None:
    assert schema.is_valid({"extends": ["quickstart"], "stages": {"1": {"steps": 3}}, "~seed": None})
    assert not schema.is_valid({"extends": 3})
    good = tree(named("quickstart").path)
    assert isinstance(good, dict)
    assert schema.is_valid({**good, "seed": "${ref:stages.0.trl.seed}"})


def test_every_key_of_the_schema_is_described(schema: jsonschema.Draft202012Validator) -> None:
    sections = {
        name: found for name, found in schema.schema["$defs"].items() if found.get("type") == "object"
    }
    assert {kind.__name__ for kind in MODES.values()} <= set(sections)
    bare = [
        f"{name}.{key}"
        for name, section in sections.items()
        for key, found in section.get("properties", {}).items()
        if not found.get("description")
    ]
    assert bare == []
    assert issubclass(MODES["online"], Section)
