"""A changed field changes its own lines of a recipe's text and no other."""

import difflib

import pytest

from rft_data.core.errors import RecipeError
from rft_data.recipe.form.editing import edited
from rft_data.recipe.form.fields import TEXT, YAML_VALUE
from rft_data.recipe.shipped import shipped_recipe
from rft_data.recipe.yaml_text import parse_yaml


def changed(text: str, key: str, value: str, kind: str = YAML_VALUE) -> list[str]:
    """The lines that a change takes away and puts in."""
    found, mistakes = edited(text, {key: (kind, value)})
    assert not mistakes
    lines = difflib.unified_diff(text.splitlines(), found.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[:2] not in ("--", "++", "@@")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["quickstart", "sums_reinforce_plus_plus", "calculator", "courtesy_eval", "sums_dapo"]
)
def test_a_change_leaves_comments_quotes_and_order(name: str) -> None:
    text = shipped_recipe(name).path.read_text()
    before = next(line for line in text.splitlines() if line.startswith("name: "))
    assert changed(text, "name", "other", TEXT) == [f"-{before}", "+name: other"]


def test_values_are_read_as_their_kind() -> None:
    assert changed("name: a # why\n", "name", "2026", TEXT) == ["-name: a # why", "+name: '2026' # why"]
    assert changed("name: a\n", "name", "a: [b", TEXT) == ["-name: a", "+name: 'a: [b'"]
    assert changed("seed: 0\n", "seed", "7") == ["-seed: 0", "+seed: 7"]
    assert changed("a: {}\n", "a", "[x, {y: 1}]") == ["-a: {}", "+a: [x, {y: 1}]"]


def test_places_are_made_and_taken_away() -> None:
    assert changed("name: a\n", "evaluation.limit", "5") == ["+evaluation:", "+  limit: 5"]
    assert changed("a: {b: 1, c: 2}\n", "a.b", " ") == ["-a: {b: 1, c: 2}", "+a: {c: 2}"]
    assert changed("a: [{b: 1}, {b: 2}]\n", "a.1.b", "3") == ["-a: [{b: 1}, {b: 2}]", "+a: [{b: 1}, {b: 3}]"]
    assert changed("name: a\n", "nothing.here", "") == []
    assert changed("name: a\nb: {c: {d: 1}}\n", "b.c.d", "") == ["-b: {c: {d: 1}}"]
    assert changed("a: [{b: 1}]\n", "a.0.b", "") == ["-a: [{b: 1}]", "+a: [{}]"]


def test_a_value_that_cannot_be_put_in_leaves_the_others() -> None:
    text, mistakes = edited(
        "name: a\nstages: []\n",
        {
            "seed": (YAML_VALUE, "[1"),
            "name": (TEXT, "b"),
            "stages.3.steps": (YAML_VALUE, "1"),
            "name.x": (TEXT, "y"),
        },
    )
    assert text == "name: b\nstages: []\n"
    assert mistakes.keys() == {"seed", "stages.3.steps", "name.x"}
    assert "this field:1:3 is not valid YAML" in mistakes["seed"]


@pytest.mark.parametrize("text", ["- a\n", "", "a: [b", "&a [*a]", "- " * 80])
def test_what_is_no_recipe_is_refused(text: str) -> None:
    with pytest.raises(RecipeError):
        edited(text, {"name": (TEXT, "b")})


@pytest.mark.slow
def test_a_new_text_is_what_was_wanted() -> None:
    text = shipped_recipe("quickstart").path.read_text()
    found, _ = edited(text, {"experience_ops": (YAML_VALUE, "- grpo_advantage_mapper: {scale: none}\n- a")})
    wanted = parse_yaml(text, "x")
    assert isinstance(wanted, dict)
    wanted["experience_ops"] = [{"grpo_advantage_mapper": {"scale": "none"}}, "a"]
    assert parse_yaml(found, "x") == wanted
