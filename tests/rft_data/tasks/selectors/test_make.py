"""From a recipe's words to a selector: names, import paths, arguments, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rft_data.core.errors import RecipeError, RftError, UnknownComponentError
from rft_data.recipe.sections import SelectorSection
from rft_data.tasks.selectors import TaskSelector, check_selector, make_selector
from tests.rft_data.tasks.selectors.pool import ARGUMENTS, make_tasks

BAD = [
    ("difficulty", {"target_pas_rate": 0.5}, "it takes target_pass_rate, decay, prior_weight, choice"),
    ("difficulty", {"target_pass_rate": 1.0}, r"'target_pass_rate' is 1.0; give a number in \(0, 1\)"),
    ("difficulty", {"decay": "0.8"}, "'decay' is '0.8'; give a number"),
    ("difficulty", {"choice": "best"}, "'choice' is 'best'; one of greedy, thompson is needed"),
    ("learnability", {"prior_weight": 0}, "'prior_weight' is 0; give a number above 0"),
    ("mopps", {"decay": -0.1}, r"'decay' is -0.1; give a number in \[0, 1\]"),
    ("shuffle", {"epochs": 3}, "it takes no arguments"),
    ("easy_to_hard", {"pace": 0}, "'pace' is 0; give a whole number of at least 1"),
    ("bandit", {"temperature": True}, "'temperature' is True; give a number"),
    ("adaptive_target", {"groups_per_update": 2.5}, "'groups_per_update' is 2.5; give a whole number"),
    ("interpolated", {"temperature": -1}, "'temperature' is -1; give 0 or more"),
    ("hierarchical", {"embedding": 3}, "'embedding' is 3; give the name of a metadata field"),
    ("hierarchical", {"rest": 0}, "'rest' is 0; give a whole number"),
    ("pools", {"easy_above": 0.1, "hard_below": 0.2}, "'hard_below' 0.2 is not below 'easy_above' 0.1"),
    ("pools", {"easy_share": 0.6, "hard_share": 0.6}, "sum to 1.2; give at most 1"),
    ("mixture", {"weights": {"a": 0}}, "'weights.a' is 0; give a number above 0"),
    ("mixture", {"weights": []}, "give a number for each taskset"),
    ("mixture", {"inner": {"use": "difficulti"}}, "did you mean 'difficulty'"),
    ("mixture", {"inner": {"use": "difficulty", "args": {"decay": 2}}}, "'decay' is 2"),
    ("mixture", {"inner": {"name": "difficulty"}}, "give {use: a selector, args: its arguments}"),
    ("staged", {"stages": []}, "give a list of {use, args, until}"),
    ("staged", {}, "missing a required argument: 'stages'"),
    ("staged", {"stages": [{"use": "shuffle", "until": {"groups": 5}}]}, "the last stage never ends"),
    ("staged", {"stages": [{"use": "shuffle"}, {"use": "shuffle"}]}, "give 'groups', 'pass_rate' or both"),
    ("staged", {"stages": ["shuffle"]}, "'stages.0' is 'shuffle'"),
    (
        "staged",
        {"stages": [{"use": "shuffle", "until": {"groups": 0}}, {"use": "random"}]},
        "stages.0.until.groups",
    ),
    ("shufle", {}, "did you mean 'shuffle'"),
]


class Fixed(TaskSelector):
    """A selector of one's own."""

    name = "fixed"
    learns = False

    def __init__(self, tasks, *, seed: int, offset: int = 0) -> None:
        self._offset = offset
        super().__init__(tasks, seed=seed)

    def _choose(self, n: int) -> list[int]:
        return [place for place in range(len(self._roster)) if self._in_play[place]][:n]


class NotASelector:
    """Has nothing a selector needs."""

    def __init__(self, tasks, *, seed: int) -> None:
        """Takes what a selector takes."""


@pytest.mark.parametrize(("use", "args", "message"), BAD)
def test_bad_arguments_are_refused_with_and_without_tasks(use: str, args, message: str) -> None:
    with pytest.raises(RftError, match=message):
        check_selector(use, args)
    with pytest.raises(RftError, match=message):
        make_selector(use, args, make_tasks(2, 3), 0)
    with pytest.raises(ValueError, match=message):
        SelectorSection(use=use, args=args)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_good_arguments_pass_without_tasks(name: str) -> None:
    use, args = ARGUMENTS[name]
    assert SelectorSection(use=use, args=dict(args)).use == use


def test_bad_selector_arguments_are_reported_with_their_line(tmp_path: Path) -> None:
    from rft_data.recipe.load import load_recipe

    text = (Path(__file__).parents[4] / "recipes" / "quickstart.yaml").read_text()
    line = next(i for i, part in enumerate(text.splitlines(), 1) if part.startswith("selector:"))
    path = tmp_path / "r.yaml"
    path.write_text(text.replace("target_pass_rate: 0.5", "target_pass_rate: 5"))
    with pytest.raises(RecipeError, match=rf"r\.yaml:{line}:1 selector: .*'target_pass_rate' is 5"):
        load_recipe(path)


def test_selector_of_ones_own_is_made_by_import_path() -> None:
    tasks = make_tasks(1, 5)
    path = f"{__name__}:Fixed"
    check_selector(path, {"whatever": 1})  # not imported, so not checked before the run
    selector = make_selector(path, {"offset": 1}, tasks, 0)
    assert set(selector.select(5)) == {task.key for task in tasks}
    with pytest.raises(RecipeError, match="it takes offset"):
        make_selector(path, {"whatever": 1}, tasks, 0)


def test_what_is_no_selector_is_refused() -> None:
    with pytest.raises(RecipeError, match="makes a NotASelector; derive it from"):
        make_selector(f"{__name__}:NotASelector", {}, make_tasks(1, 1), 0)
    with pytest.raises(UnknownComponentError, match="there is no module 'no_such_module'"):
        make_selector("no_such_module:X", {}, make_tasks(1, 1), 0)


def test_mixture_weights_must_name_the_tasksets_there_are() -> None:
    tasks = [*make_tasks(1, 3, "a"), *make_tasks(1, 3, "b")]
    with pytest.raises(RecipeError, match="taskset 'b' has no weight"):
        make_selector("mixture", {"weights": {"a": 1}}, tasks, 0)
    with pytest.raises(RecipeError, match=r"names tasksets \['c'\] without any task"):
        make_selector("mixture", {"weights": {"a": 1, "b": 1, "c": 2}}, tasks, 0)
