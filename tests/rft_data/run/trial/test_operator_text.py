"""Each mistake in a list of operators has its line and column; files, hosts and own code are refused."""

import pytest

from rft_data.core.errors import RecipeError
from rft_data.run.trial.operator_text import read_operators


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("- rewrd_variance_filter\n", (1, 3, "did you mean 'reward_variance_filter'")),
        ("\n- reward_variance_filter:\n    min_sdt: 1\n", (3, 5, "did you mean 'min_std'")),
        ("- reward_variance_filter: {min_std: small}\n", (1, 28, "wants float")),
        ("- grpo_advantage_mapper\n- mine.py:Filter\n", (2, 3, "code of your own")),
        ("- {os:system: {}}\n", (1, 4, "code of your own")),
        ("- lancedb_write_mapper: {uri: /tmp/x}\n", (1, 3, "writes the rows")),
        ("- llm_score_mapper: {}\n", (1, 3, "asks a language model")),
        ("- semantic_diversity_filter: {model: os:system}\n", (1, 3, "loads a model")),
        ("- feedback_mapper: {buffer: /etc}\n", (1, 21, "no file and no host")),
        ("- task_priority_mapper\n", (1, 3, "judges tasks")),
        ("- python_lambda_mapper: {lambda_str: 'lambda x: x'}\n", (1, 3, "list of safe operators")),
        ("- [a]\n", (1, 3, "wanted one operator's name")),
        ("- {a: 1, b: 2}\n", (1, 3, "wanted one operator's name")),
        ("- reward_variance_filter: 3\n", (1, 3, "a map of its arguments")),
    ],
)
def test_a_mistake_has_its_place(text: str, wanted: tuple[int, int, str]) -> None:
    with pytest.raises(RecipeError) as found:
        read_operators(text)
    [mistake] = found.value.mistakes
    line, column, words = wanted
    assert (mistake["line"], mistake["column"]) == (line, column)
    assert words in str(mistake["message"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "found nothing; wanted a list"),
        ("a: [b\n", "operators:2:1 is not valid YAML"),
        ("operators: []\n", "found a map; wanted a list"),
        ("- &a {x: 1}\n- &b [*a, *a]\n" + "- [*b, *b, *b, *b]\n" * 5_000, "more than 20000 values"),
        ("- " * 80 + "x", "lie inside each other"),
        ("- &a [*a]\n", "lies inside itself"),
        ("- !!python/object/apply:os.system [id]\n", "wanted one operator's name"),
    ],
)
def test_a_text_that_is_no_list_is_refused(text: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        read_operators(text)


def test_a_list_is_read_with_and_without_its_key() -> None:
    plain = read_operators(
        "- reward_variance_filter: {min_std: 0.5} # why\n- grpo_advantage_mapper\n"
    ).operators
    assert plain == [{"reward_variance_filter": {"min_std": 0.5}}, {"grpo_advantage_mapper": {}}]
    under = "experience_ops:\n  - reward_variance_filter: {min_std: 0.5}\n  - grpo_advantage_mapper\n"
    assert read_operators(under).operators == plain
    assert all(type(entry) is dict for entry in plain), "plain values, not ruamel's"
