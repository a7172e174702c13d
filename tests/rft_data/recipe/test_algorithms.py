"""Presets: what an algorithm's one word sets, and what of it the recipe may change."""

import json
from pathlib import Path

import pytest

from rft_data.core.errors import MissingFileError, RecipeError, UnknownComponentError
from rft_data.recipe import load_recipe
from rft_data.recipe.algorithms import ALGORITHMS, Algorithm, find_algorithm
from rft_data.recipe.explain import explain
from rft_data.recipe.load import check_recipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.presets import sets_advantage
from rft_data.run.build import experience_pipeline
from rft_data.run.checks import check_stages

RECIPE = """\
recipe: 1
name: one-word
mode: online
run_dir: {root}/run
buffer: {{uri: {root}/run/buffer}}
model: {{build: {{use: tiny_qwen2}}}}
tasks:
  - {{name: sums, source: {{use: jsonl, path: sums.jsonl}}}}
experts:
  - {{use: "recipes.arithmetic:short_answer", tasksets: [sums], limit: 4}}
selector: {{use: shuffle}}
explorer:
  engine: {{use: transformers}}
  max_tokens: 24
  reward: [{{use: exact_answer}}]
stages:
  - {{algorithm: grpo, groups_per_step: 4, steps: 2{stage}}}
evaluation: {{limit: 4}}
"""
MINE = Algorithm(
    "a test's own",
    "none",
    [{"reward_advantage_mapper": {}}],
    loss={"use": "ppo_clip", "args": {}},
    least_group=1,
)


def recipe_of(root: Path, *overrides: str, stage: str = "") -> OnlineRecipe:
    path = root / "recipe.yaml"
    path.write_text(RECIPE.format(root=root, stage=stage))
    recipe = load_recipe(path, overrides)
    assert isinstance(recipe, OnlineRecipe)
    return recipe


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_one_word_makes_a_recipe_that_passes_every_check(name: str, tmp_path: Path) -> None:
    preset = ALGORITHMS[name]
    overrides = [f"stages.0.algorithm={name}"]
    if "teacher" in preset.needs:
        (tmp_path / "config.json").write_text("{}")
        overrides.append(f"stages.0.teacher={tmp_path}")
    recipe = recipe_of(tmp_path, *overrides)
    pipeline = experience_pipeline(recipe, None)
    pipeline.close()
    check_stages(recipe)
    stage = recipe.stages[-1]
    assert recipe.explorer.group_size == preset.group_size
    assert list(recipe.experience_ops) == list(preset.advantage)
    assert recipe.sampler.use == (preset.sampler or {"use": "fifo"})["use"]
    assert {**stage.trl, **preset.trl_loss} == stage.trl
    assert (stage.loss and stage.loss.use) == (preset.loss and preset.loss["use"])
    assert stage.batch_ops == list(preset.batch_ops)
    assert (stage.critic is not None) == (preset.critic is not None)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_saved_recipe_is_the_same_recipe(name: str, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, f"stages.0.algorithm={name}", f"stages.0.teacher={tmp_path}")
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(recipe.saved()))
    assert load_recipe(saved) == recipe


def test_what_the_recipe_says_wins(tmp_path: Path) -> None:
    recipe = recipe_of(
        tmp_path,
        "stages.0.algorithm=dapo",
        "explorer.group_size=3",
        "experience_ops=[{rloo_advantage_mapper: {}}]",
        "sampler={use: windowed, args: {window: 2}}",
        stage=", trl: {epsilon_high: 0.4}",
    )
    assert recipe.explorer.group_size == 3
    assert recipe.experience_ops == [{"dynamic_sampling_filter": {}}, {"rloo_advantage_mapper": {}}]
    assert recipe.sampler.use == "windowed"
    assert recipe.stages[0].trl == {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.4}


def test_advantage_operator_comes_after_the_recipes_own_operators(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "experience_ops=[{reward_variance_filter: {}}]")
    assert recipe.experience_ops == [{"reward_variance_filter": {}}, {"grpo_advantage_mapper": {}}]


def test_loss_of_ours_takes_the_presets_place_with_its_options(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "stages.0.algorithm=gspo", stage=", loss: {use: ppo_clip}")
    assert recipe.stages[0].trl == {}
    check_stages(recipe)
    back = recipe_of(tmp_path, "stages.0.algorithm=opmd", stage=", loss: null, trl: {loss_type: cispo}")
    assert back.stages[0].loss is None
    check_stages(back)


def test_dr_grpo_divides_by_the_longest_completion(tmp_path: Path) -> None:
    assert recipe_of(tmp_path, "stages.0.algorithm=dr_grpo").stages[0].trl["max_completion_length"] == 24


def test_preset_by_import_path(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, 'stages.0.algorithm="tests.rft_data.recipe.test_algorithms:MINE"')
    assert recipe.stages[0].loss.use == "ppo_clip"
    assert recipe.experience_ops == [{"reward_advantage_mapper": {}}]
    with pytest.raises(RecipeError, match=r"not a rft_data.recipe.algorithms.Algorithm"):
        find_algorithm("tests.rft_data.recipe.test_algorithms:RECIPE")
    with pytest.raises(UnknownComponentError, match="did you mean 'grpo'"):
        find_algorithm("grppo")


def test_a_check_imports_no_preset_but_looks_at_its_path(tmp_path: Path) -> None:
    (tmp_path / "raises_when_imported.py").write_text("raise SystemExit(7)")
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE.format(root=tmp_path, stage=""))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        checked = check_recipe(path, ["stages.0.algorithm='raises_when_imported:MINE'"])
        assert checked.stages[0].algorithm == "raises_when_imported:MINE"
        with pytest.raises(SystemExit):
            load_recipe(path, ["stages.0.algorithm='raises_when_imported:MINE'"])
    for wrong in (":", "a:", ":B", "a b:C", "a..b:C", "a:B.C"):
        with pytest.raises(RecipeError, match=r"stages.0.algorithm: algorithm .* is no import path"):
            check_recipe(path, [f"stages.0.algorithm='{wrong}'"])
    with pytest.raises(RecipeError, match="unknown key"):
        check_recipe(path, ["stages.0.algorithm='a:B'", "stages.0.stepz=1"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stages.0.algorithm=grppo"], "did you mean 'grpo'"),
        (["explorer.group_size=1"], "compares rollouts of one task: give at least 2"),
        (["stages.0.algorithm=on_policy_distill"], "give 'teacher'"),
        (["stages.0.algorithm=mix", "experts=[]"], "give 'experts'"),
        (["stages.0.trl={temperature: 0.5}"], r"stages\.0\.trl\.temperature: .*; remove it"),
        (["stages.0.algorithm=ppo", "experience_ops=3"], "experience_ops"),
    ],
)
def test_combinations_that_cannot_be_are_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe_of(tmp_path, *overrides)


def test_options_of_trls_losses_are_refused_with_a_loss_of_ours(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "stages.0.algorithm=opmd", "stages.0.trl={epsilon: 0.3}")
    with pytest.raises(RecipeError, match="epsilon only change TRL's losses"):
        check_stages(recipe)


def test_corrections_that_a_loss_would_apply_twice_or_never_are_refused(tmp_path: Path) -> None:
    twice = ", off_policy: {old_logprobs: recompute, importance: masked}"
    with pytest.raises(RecipeError, match="weights of its own"):
        check_stages(recipe_of(tmp_path, "stages.0.algorithm=decoupled_ppo", stage=twice))
    check_stages(recipe_of(tmp_path, "stages.0.algorithm=dapo", stage=twice))
    with pytest.raises(RecipeError, match="which 'recompute' replaces by 1"):
        check_stages(
            recipe_of(tmp_path, "stages.0.algorithm=topr", stage=", off_policy: {old_logprobs: recompute}")
        )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stages.0.algorithm=ppo", "stages.0.critic=null"], "read a critic's values"),
        (
            ["stages.0.algorithm=ppo", "stages.0.critic={use: sharred}"],
            "should be 'shared' or 'separate'",
        ),
        (["stages.0.algorithm=ppo", "stages.0.batch_ops=[whiten: {}]"], "no operator in its batch_ops"),
        (["stages.0.critic={}"], "add 'gae'"),
        (["stages.0.teacher=nowhere"], "a 'teacher' that nothing reads"),
        (["stages.0.teacher=nowhere", "stages.0.kl={coef: 0.1}"], "no folder of a model"),
        (["stages.0.batch_ops=[distill: {}]"], "the stage no 'teacher'"),
        (["stages.0.algorithm=mix", "sampler={use: fifo}"], "the sampler brings none"),
        (["stages.0.algorithm=mix", "stages.0.loss={use: ppo_clip}"], "cannot train on such"),
        (["sampler={use: mix, args: {parts: {own: 3, experts: 1}}}"], "cannot train on such"),
        (
            [
                "stages.0.loss={use: loglinear_ppo}",
                "sampler={use: mix, args: {parts: {own: 3, 'old/': 1}}}",
            ],
            "whose versions are not this run's",
        ),
        (
            ["stages.0.algorithm=lite_ppo", "experience_ops=[{grpo_advantage_mapper: {}}]"],
            "would take those advantages for rewards",
        ),
        (["stages.0.algorithm=remax", "explorer.greedy_member=false"], "Have both or neither"),
        (["explorer.greedy_member=true"], "Have both or neither"),
        (["stages.0.algorithm=pass_at_k", "explorer.group_size=4"], "at least 5|every advantage would"),
    ],
)
def test_sections_that_do_not_go_together_are_refused_before_any_work(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises((RecipeError, MissingFileError), match=message):
        check_stages(recipe_of(tmp_path, *overrides))


@pytest.mark.parametrize(
    ("algorithm", "corrected"),
    [
        ("grpo", ("rollout", "none")),  # TRL's losses clip the ratio to the policy that sampled
        ("dual_clip", ("rollout", "none")),
        ("importance_sampling", ("rollout", "none")),
        ("maxrl", ("recompute", "token_truncated")),
        ("reinforce", ("recompute", "token_truncated")),
        ("asymre", ("rollout", "none")),  # has no weights by design
    ],
)
def test_groups_that_are_trained_again_are_corrected_for(
    algorithm: str, corrected: tuple[str, str], tmp_path: Path
) -> None:
    replay = [f"stages.0.algorithm={algorithm}", "sampler.use=replay"]
    recipe = recipe_of(tmp_path, *replay)
    assert (recipe.rl.off_policy.old_logprobs, recipe.rl.off_policy.importance) == corrected
    line = f'stages.0.off_policy.old_logprobs = "{corrected[0]}"  # preset'
    assert line in explain(tmp_path / "recipe.yaml", replay)


@pytest.mark.parametrize(
    ("algorithm", "off_policy", "why"),
    [
        ("maxrl", "{old_logprobs: rollout}", "the loss 'policy_gradient' of 'maxrl' has no ratio"),
        ("grpo", "{old_logprobs: recompute}", "makes every ratio of a step 1"),
    ],
)
def test_replay_without_any_correction_is_refused(
    algorithm: str, off_policy: str, why: str, tmp_path: Path
) -> None:
    changes = [f"stages.0.algorithm={algorithm}", f"stages.0.off_policy={off_policy}"]
    recipe_of(tmp_path, *changes)
    with pytest.raises(RecipeError, match=why):
        recipe_of(tmp_path, *changes, "sampler.use=replay")


def test_explain_says_who_set_what(tmp_path: Path) -> None:
    recipe_of(tmp_path, stage=", trl: {epsilon: 0.3}")
    lines = explain(tmp_path / "recipe.yaml", ["stages.0.algorithm=dapo", "seed=3"])
    assert lines[0].startswith("# dapo: groups of one outcome refilled")
    assert "seed = 3  # command line" in lines
    line = (tmp_path / "recipe.yaml").read_text()[: -len("evaluation: {limit: 4}\n")].count("\n")
    assert f"stages.0.trl.epsilon = 0.3  # {tmp_path}/recipe.yaml:{line}" in lines
    assert "stages.0.trl.epsilon_high = 0.28  # preset" in lines
    assert "explorer.group_size = 8  # preset" in lines
    assert "experience_ops.0.dynamic_sampling_filter = {}  # preset" in lines
    assert "stages.0.checkpoint_every = 25  # default" in lines


def test_explain_knows_the_recipes_operators_wherever_they_come_to_stand(tmp_path: Path) -> None:
    recipe_of(tmp_path)
    override = "experience_ops=[{grpo_advantage_mapper: {}}]"
    lines = explain(tmp_path / "recipe.yaml", ["stages.0.algorithm=dapo", override])
    assert "experience_ops.0.dynamic_sampling_filter = {}  # preset" in lines
    assert "experience_ops.1.grpo_advantage_mapper = {}  # command line" in lines


@pytest.mark.slow
def test_explain_shows_references_and_not_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "hush")
    monkeypatch.setenv("MODEL_FOLDER", "/models/small")
    recipe_of(tmp_path)
    override = 'explorer.reward=[{use: "my.judge:Judge", args: {key: "${env:SECRET_KEY}"}}]'
    lines = explain(tmp_path / "recipe.yaml", [override, "model={path: '${env:MODEL_FOLDER}'}"])
    assert 'explorer.reward.0.args.key = "${env:SECRET_KEY}"  # command line' in lines
    assert "hush" not in "\n".join(lines)
    assert 'model.path = "/models/small"  # command line' in lines, "a path is no secret"
    lines = explain(tmp_path / "recipe.yaml", ["model={path: '${env:SECRET_KEY}'}", override])
    assert 'model.path = "${env:SECRET_KEY}"  # command line' in lines, "it stands at another key too"


def test_an_advantage_operator_of_ones_own_counts_as_one() -> None:
    assert sets_advantage({"my_ops.py:MyAdvantage": {}})
    assert not sets_advantage({"my_ops.py:Brevity": {}})
