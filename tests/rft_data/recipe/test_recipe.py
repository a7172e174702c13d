from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.recipe import load_recipe
from rft_data.recipe.modes import DataRecipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.recipe import PlayingRecipe
from rft_data.run.build import experience_pipeline
from tests.rft_data.run.test_online import write_recipe

RECIPES = Path(__file__).parents[3] / "recipes"

GOOD = """\
recipe: 1
name: r
mode: online
run_dir: runs/r
buffer: {uri: runs/r/buffer}
model:
  build: {use: tiny_qwen2, hidden_size: 64}
tasks:
  - name: a
    source: {use: reasoning_gym, dataset: chain_sum, size: 10}
selector: {use: shuffle}
explorer:
  engine: {use: transformers}
  group_size: 4
  max_tokens: 8
  reward: [{use: exact_answer}]
experience_ops:
  - grpo_advantage_mapper: {}
stages:
  - algorithm: grpo
    groups_per_step: 2
    steps: 3
    trl: {learning_rate: 1e-3}
evaluation: {limit: 4}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda p: p.name)
def test_recipe_parses(path: Path) -> None:
    assert load_recipe(path).name


def test_good_recipe_loads_with_yaml_1_2_numbers(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, GOOD))
    assert isinstance(recipe, OnlineRecipe)
    assert recipe.stages[0].trl["learning_rate"] == 1e-3
    assert type(recipe.stages[0].trl["learning_rate"]) is float
    assert recipe.sync.max_staleness == 0


def test_all_problems_are_reported_at_once_with_their_place(tmp_path: Path) -> None:
    text = (
        GOOD.replace("hidden_size", "hiden_size")
        .replace("size: 10", "size: 0")
        .replace("steps: 3", "stepz: 3")
    )
    path = write(tmp_path, text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path} is not a valid recipe:"
    assert f"  {path}:7:28 model.build.hiden_size: unknown key; did you mean 'hidden_size'?" in lines
    column = text.splitlines()[9].index("size: 0") + 1
    assert any(line.startswith(f"  {path}:10:{column} tasks.0.source.size:") for line in lines)
    assert f"  {path}:22:5 stages.0.stepz: unknown key; did you mean 'steps'?" in lines
    assert any("stages.0.steps: is missing. Optimizer steps" in line for line in lines)
    assert len(lines) == 5
    text = GOOD.replace("selector:", "nothing:")
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, text))
    assert (
        f"  {path}:3:1 selector: is missing, and mode 'online' needs it. The choice of the next tasks"
        in str(caught.value)
    )


def test_a_mistake_of_a_stage_has_the_stage_as_its_place_and_brings_no_other(tmp_path: Path) -> None:
    untaught = write(tmp_path, GOOD.replace("algorithm: grpo", "algorithm: on_policy_distill"))
    with pytest.raises(RecipeError, match=r"stages\.0: 'on_policy_distill' learns from a teacher"):
        load_recipe(untaught)
    of_a_preset = GOOD.replace("  group_size: 4\n", "").replace(
        "experience_ops:\n  - grpo_advantage_mapper: {}\n", ""
    )
    unknown = write(tmp_path, of_a_preset.replace("algorithm: grpo", "algorithm: grpoo"))
    with pytest.raises(RecipeError) as caught:
        load_recipe(unknown)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: r\n", "name: r\nname: s\n", "found duplicate key"),
        ("buffer: {uri: runs/r/buffer}", "buffer: {uri: runs/r/buffer", r"r\.yaml:6:\d+ is not valid YAML"),
        ("mode: online", "mode: [online]", r"3:1 mode: found \['online'\]"),
        (
            "group_size: 4",
            "group_size: '4'",
            "14:3 explorer.group_size: found '4'; it should be a valid integer",
        ),
        (
            "steps: 3",
            "steps: ${env:RFT_NO_NUMBER:-few}",
            r"found '\$\{env:RFT_NO_NUMBER:-few\}'; it should be",
        ),
        (
            "name: r\n",
            "name: r\ntrackers: []\n",
            r"unknown key here; .* monitor: write monitor: \{trackers: ...\}",
        ),
        (
            "selector: {use: shuffle}",
            "selector: shuffle",
            r"selector: found 'shuffle'; a section is wanted: write \{use: shuffle\}",
        ),
        (
            "evaluation: {limit: 4}",
            "evaluation: 4",
            "evaluation: found 4; a section is wanted, with keys of limit",
        ),
        (
            "{use: reasoning_gym, dataset: chain_sum, size: 10}",
            "{use: stored, dataset: chain_sum}",
            "source.dataset: unknown key here: another kind of this section has it",
        ),
        (
            "{use: reasoning_gym, dataset:",
            "{use: stored, datast:",
            "source.datast: unknown key; there are use",
        ),
        ("hidden_size", "breadth", "model.build.breadth: unknown key; there are use, hidden_size"),
        (
            "algorithm: grpo",
            "algorithm: grpoo",
            r"stages.0.algorithm: algorithm 'grpoo' .* 'grpo'\?(?!.*missing)",
        ),
        ("algorithm: grpo", "algoritm: grpo", r"stages.0.algorithm: is missing\n"),
        ("reward: [{use: exact_answer}]", "reward: [{use: later}, {use: later}]", "uses one component twice"),
        (
            "{use: exact_answer}",
            "{use: exact_answer, args: {mark: x}}",
            "made: got an unexpected .*'mark'",
        ),
        (
            "{use: exact_answer}",
            "{use: reward_model}",
            "made: missing a required argument: 'model'",
        ),
        ("{use: exact_answer}", "{use: number, min: 1, max: 0}", "min 1 above max 0"),
        (
            "{use: exact_answer}",
            "{use: number, tasksets: [nowhere]}",
            "for tasksets .'nowhere'.; there are",
        ),
        (
            "{use: exact_answer}",
            "{use: number, only_if: {reward: exact_answer, at_least: 1}}, {use: exact_answer}",
            "only_if.reward 'exact_answer', which is no component before it",
        ),
        (
            "mode: online",
            "mode: onlin",
            "3:1 mode: found 'onlin'; one of online, explore, .*, data is needed; did you mean 'online'",
        ),
        ("mode: online", "mode: onlin\nsede: 1", r"4:1 sede: unknown key; did you mean 'seed'"),
        ("mode: online", "mode: nothing at all\nsede: 1", r"eval, data is needed$"),
        (
            "recipe: 1",
            "recipe: 2",
            "r.yaml:1:1 recipe: found 2; rft-data .* reads formats up to 1: install a later one$",
        ),
        (
            "recipe: 1",
            "recipe: '0.9'",
            "r.yaml:1:1 recipe: found '0.9'; 1 is the only format that there has been: write recipe: 1$",
        ),
        ("use: transformers", "use: transformer", "13:12 explorer.engine.use: .*did you mean 'transformers'"),
        (
            "use: transformers",
            "use: vllm, options: {trust_remote_code: true}",
            "13:3 explorer.engine: .*'trust_remote_code' would run code from model repositories",
        ),
        (
            "use: transformers",
            "use: vllm, options: {worker_cls: a.B}",
            "13:3 explorer.engine: .*'worker_cls' would replace the worker",
        ),
        ("group_size: 4", "group_size: 1", "give at least 2"),
        ("trl: {learning_rate: 1e-3}", "epochs: 3", r"23:5 stages\.0\.epochs: unknown key$"),
        (
            "stages:\n",
            "stages:\n  - {algorithm: sft, steps: 3}\n",
            r"stages\.0\.steps: unknown key here: another kind of this section has it",
        ),
        (
            "group_size: 4",
            "group_size: 4\n  top_p: 0.9",
            "15:3 explorer.top_p: 'top_p' is refused: .*cut-off",
        ),
        ("group_size: 4", "group_size: 4\n  min_tokens: 999", "explorer: 'min_tokens' 999 is above"),
        ("group_size: 4", "group_size: 4\n  stop: ['']", "explorer.stop.0: String should have at least 1"),
        ("  build: {use: tiny_qwen2, hidden_size: 64}", "  path:", "exactly one of 'path' and 'build'"),
        (
            "selector: {use: shuffle}",
            "selector: {use: shufle}",
            "11:1 selector: .*'shufle' is not known; did you mean 'shuffle'",
        ),
        (
            "limit: 4",
            "limit: '${env:RFT_NOT_SET}'",
            "24:14 evaluation.limit: environment variable RFT_NOT_SET",
        ),
        ("evaluation:", "sync: {every: 3, max_staleness: 1}\nevaluation:", "give at least 2"),
    ],
)
def test_bad_recipe_gets_one_clear_error(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(tmp_path, GOOD.replace(old, new)))


def test_sft_stage_needs_experts_and_the_exploring_stage_comes_last(tmp_path: Path) -> None:
    sft = GOOD.replace("stages:\n", "stages:\n  - {algorithm: sft}\n")
    with pytest.raises(RecipeError, match="needs 'experts'"):
        load_recipe(write(tmp_path, sft))
    with pytest.raises(RecipeError, match="offline stages and then one that explores"):
        load_recipe(write(tmp_path, GOOD), ["stages.0={algorithm: sft}"])


def test_a_mistake_about_a_stage_is_at_the_stage(tmp_path: Path) -> None:
    text = "recipe: 1\nname: x\nmode: offline\nrun_dir: r\nbuffer: {uri: b}\nmodel: {path: m}\n"
    with pytest.raises(RecipeError, match=r"7:10 stages\.0: stage 0 \('sft'\) needs 'data'"):
        load_recipe(write(tmp_path, f"{text}stages: [{{algorithm: sft}}]\n"))


def test_overrides_reach_into_maps_and_lists(tmp_path: Path) -> None:
    recipe = load_recipe(
        write(tmp_path, GOOD), ["seed=7", "stages.0.trl.beta=0.1", "explorer.engine.use=vllm", "sync.every=1"]
    )
    assert (recipe.seed, recipe.stages[0].trl["beta"], recipe.explorer.engine.use) == (7, 0.1, "vllm")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "not of the form key=value"),
        ("tasks.9.name=x", "no 'tasks.9.name'"),
        ("name.x=1", "no 'name.x'"),
        ("seed=[", "the value of override 'seed':1:2 is not valid YAML"),
        ("seed=" + "[" * 65, "the value of override 'seed':1:65: more than 64 lists and maps"),
        ("a." * 65 + "b=1", "a place deeper than 64 keys"),
        ("explorer.enigne.use=vllm", "unknown key; did you mean 'engine'"),
    ],
)
def test_bad_override_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(tmp_path, GOOD), [override])


def test_environment_reference_uses_value_then_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GOOD.replace("uri: runs/r/buffer", "uri: '${env:RFT_TEST_URI:-fallback}/b'")
    assert load_recipe(write(tmp_path, text)).buffer.uri == "fallback/b"
    monkeypatch.setenv("RFT_TEST_URI", "/data")
    assert load_recipe(write(tmp_path, text)).buffer.uri == "/data/b"


def test_an_environment_value_that_is_no_yaml_is_a_problem_which_does_not_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFT_TEST_NAME", "{a: s3cret, a: s3cret}")
    with pytest.raises(RecipeError, match=r"r.yaml:2:1 name: the environment variable's value") as caught:
        load_recipe(write(tmp_path, GOOD.replace("name: r\n", "name: '${env:RFT_TEST_NAME}'\n")))
    assert "s3cret" not in str(caught.value)


def doubled(levels: int) -> str:
    """Lines of YAML, each with ten aliases of the line before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (doubled(9), r"r.yaml:5:\d+: it stands for more than 20000 values"),
        (doubled(2) + "\na2: {<<: [*a0, *a9]}", "r.yaml:3.* not valid YAML"),
        ("a: &a {b: [*a]}", r"r.yaml:1:12: '\*a' lies inside itself"),
        ("a: " + "[" * 5000, "r.yaml:1:67: more than 64 lists and maps lie inside each other"),
        ("a: " + "{a: " * 5000, "more than 64 lists and maps"),
        ("\n".join(" " * n + "a:" for n in range(1000)), "r.yaml:65:65: more than 64 lists and maps"),
        ("- " * 5000, "more than 64 lists and maps"),
        ("a: [" + "x," * 30_000, "more than 20000 values"),
        ("a: &a 1\na: *a", "found duplicate key"),
        ("- 1", "holds a list, not a map"),
        ("", "is empty; a recipe begins with"),
    ],
    ids=range(11),
)
def test_yaml_that_is_too_large_or_too_deep_is_an_error_at_its_place(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(tmp_path, text))


def test_missing_recipe_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="there is no recipe at"):
        load_recipe(tmp_path / "no.yaml")


def test_data_recipe_needs_a_reward_for_its_rollouts(tmp_path: Path) -> None:
    text = """\
recipe: 1
name: d
mode: data
buffer: {uri: b}
tasks: [{name: a, source: {use: jsonl, path: x.jsonl}}]
"""
    assert isinstance(load_recipe(write(tmp_path, text)), DataRecipe)
    completions = "completions: [{name: m, text: t}]"
    rollouts = f"rollouts: [{{name: r, taskset: a, source: {{use: jsonl, path: y}}, {completions}}}]\n"
    with pytest.raises(RecipeError, match="give at least one 'reward'"):
        load_recipe(write(tmp_path, text + rollouts))
    reward = "reward: [{use: math_verify}]\n"
    with pytest.raises(RecipeError, match="names tasksets \\['b'\\]"):
        load_recipe(write(tmp_path, text + rollouts.replace("taskset: a", "taskset: b") + reward))
    assert load_recipe(write(tmp_path, text + rollouts + reward)).rollouts[0].taskset == "a"


EXPLORE = GOOD.replace("mode: online", "mode: explore\ngroups: 4").partition("stages:")[0]
STALE = GOOD + "sync: {every: 1, max_staleness: 1}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "found"),
    [(EXPLORE, "mode 'explore'"), (STALE, "'sync.max_staleness' 1")],
    ids=["explore", "stale"],
)
@pytest.mark.parametrize(
    "operator", ["grpo_advantage_mapper: {scale: batch}", "reinforce_baseline_advantage_mapper: {}"]
)
def test_operators_over_the_batch_are_refused_where_groups_are_judged_one_by_one(
    tmp_path: Path, text: str, found: str, operator: str
) -> None:
    with Buffer(str(tmp_path / "buffer")) as buffer:
        recipe = load_recipe(write(tmp_path, text.replace("grpo_advantage_mapper: {}", operator)))
        assert isinstance(recipe, PlayingRecipe)
        with pytest.raises(
            RecipeError, match=f"{operator.split(':')[0]}.*{found}.*synchronous.*scale: group"
        ):
            experience_pipeline(recipe, buffer)
        for fine in (text, GOOD.replace("grpo_advantage_mapper: {}", operator)):
            recipe = load_recipe(write(tmp_path, fine))
            assert isinstance(recipe, PlayingRecipe)
            experience_pipeline(recipe, buffer).close()


def test_two_components_of_one_kind_have_names_and_plain_ones_change_no_recipe(tmp_path: Path) -> None:
    two = "reward: [{use: number}, {use: number, name: near, max: 1}]"
    recipe = load_recipe(write(tmp_path, GOOD.replace("reward: [{use: exact_answer}]", two)))
    first, second = recipe.explorer.reward
    assert (first.stored_as, second.stored_as) == ("number", "near")
    assert first.model_dump() == {"use": "number", "weight": 1.0, "args": {}}


def test_an_argument_that_is_refused_is_named_and_not_shown(tmp_path: Path) -> None:
    refused = "{use: exact_answer, args: {key: hush}}"
    with pytest.raises(RecipeError, match="unexpected keyword argument 'key'") as caught:
        load_recipe(write(tmp_path, GOOD.replace("{use: exact_answer}", refused)))
    assert "hush" not in str(caught.value)


def test_a_bare_name_is_an_operator_without_arguments(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    plain = load_recipe(path, ["experience_ops=[reward_variance_filter, {grpo_advantage_mapper: {}}]"])
    assert plain.saved()["experience_ops"] == [{"reward_variance_filter": {}}, {"grpo_advantage_mapper": {}}]
    with pytest.raises(RecipeError, match=r"experience_ops\.0: .*did you mean 'reward_variance_filter'"):
        load_recipe(path, ["experience_ops=[reward_varianc_filter]"])


def test_an_evaluation_needs_no_group_size_and_an_online_run_no_evaluation(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    text = path.read_text()
    path.write_text(text.replace("evaluation: {limit: 16}\n", ""))
    assert "evaluation" not in load_recipe(path).saved()
    path.write_text(
        "recipe: 1\nname: e\nmode: eval\nrun_dir: r\nbuffer: {uri: b}\nmodels: [m]\n"
        "tasks: [{name: a, source: {use: jsonl, path: a.jsonl}}]\nevaluation: {limit: 4}\n"
        "explorer: {engine: {use: transformers}, max_tokens: 8, reward: [{use: exact_answer}]}\n"
    )
    assert load_recipe(path).explorer.group_size == 1  # type: ignore[attr-defined]
