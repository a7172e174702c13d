"""What cannot work is refused by `rft recipe validate`, with its place, and nothing is imported for it."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from explorers.workflows.make import WORKFLOWS
from rft_data.core.errors import RecipeError
from rft_data.recipe import load_recipe, names
from rft_data.recipe.load import check_recipe
from rft_data.recipe.workflow_args import NEEDED_ARGS, WORKFLOW_ARGS
from rft_data.run.build import taskset_tasks
from rft_data.sampler.make import POLICIES
from rft_data.tasks.selectors import make_selector, needed_metadata
from tests.rft_data.run.test_online import write_recipe

MISTAKES = {
    "experience_ops.0={reward_rang_filter: {}}": r"experience_ops\.0: .* did you mean 'reward_range_filter'",
    "task_ops=[{document_minhash_dedup: {}}]": r"task_ops\.0: .*'document_minhash_deduplicator'",
    "experience_ops.0={video_split_by_scene_mapper: {}}": "not on the list of safe operators",
    "explorer.engine.options={dtyp: float32}": r"explorer\.engine\.options: .* did you mean 'dtype'",
    "explorer.engine={use: vllm, options: {seed: 1}}": "'seed' is set by the engine itself",
    "selector={use: interpolated}": "strong_pass_rate, weak_pass_rate in the tasks' metadata",
    "selector={use: hierarchical, args: {embedding: vec}}": "reads vec in the tasks' metadata",
    "selector={use: staged, args: {stages: [{use: interpolated, args: {weak: w, strong: s}}]}}": "reads s, w",
    "stages.1.kl={coef: 0.1, estimator: 'a:b'}": r"stages\.1\.kl: KL estimator 'a:b' is not known",
    "stages.1.kl={coef: 0.1, estimator: k1}": "no pull to the reference",
    "explorer.reward=[{use: exact_anser}]": r"explorer\.reward\.0\.use: .* did you mean 'exact_answer'",
    "explorer.workflow={use: single_turnn}": r"explorer\.workflow: .* did you mean 'single_turn'",
    "explorer.workflow={use: single_turn, args: {sytem: x}}": r"no argument 'sytem'; did you mean 'system'",
    "explorer.workflow={use: tools, args: {tools: 'a:B', turnz: 3}}": "'turnz'; did you mean 'turns'",
    "explorer.workflow={use: function}": r"explorer\.workflow: .*'function' needs the argument 'play'",
    "explorer.workflows={w: {use: environment, args: {environment: X-v1, shap: y}}}": r"did you mean 'shape'",
    "tasks.0={name: a, source: {use: verifiers, environment: x}, metadata: [y]}": "leave out 'metadata'",
    "explorer.limits={retriess: 1}": r"explorer\.limits: .* did you mean 'retries'",
    "sampler={use: fifoo}": r"sampler: .* did you mean 'fifo'",
    "stages.1.loss={use: ppo_clipp}": r"stages\.1\.loss: .* did you mean 'ppo_clip'",
    "stages.1.batch_ops=[{whitn: {}}]": r"stages\.1\.batch_ops\.0: .* did you mean 'whiten'",
    "stages.1.critic={use: shard}": r"stages\.1\.critic\.use: found 'shard'; it should be 'shared' or",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_what_cannot_work_is_refused_with_its_place(tmp_path: Path, override: str) -> None:
    with pytest.raises(RecipeError, match=rf"(command line|small\.yaml:1:1 recipe:) .*{MISTAKES[override]}"):
        check_recipe(write_recipe(tmp_path), [override])


@pytest.mark.parametrize(
    "override",
    [
        "explorer.workflow={use: 'mine.py:Play'}",
        "explorer.workflow={use: 'mine.py:Play', args: {turnz: 3}}",
        "explorer.engine={use: 'mine.py:Engine', options: {own: 1}}",
        "explorer.reward=[{use: 'mine:Reward'}]",
        "sampler={use: 'mine:Policy'}",
        "stages.1.loss={use: 'mine:loss'}",
        "stages.1.batch_ops=[{'mine:op': {}}]",
        "placement={use: local, trainer: {processes: 2}}",
    ],
)
def test_what_is_the_users_own_passes(tmp_path: Path, override: str) -> None:
    check_recipe(write_recipe(tmp_path), [override])


@pytest.mark.slow
def test_a_file_of_operators_may_be_unsafe_and_must_exist(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    unsafe = "experience_ops.0={video_split_by_scene_mapper: {}}"
    assert check_recipe(path, ["allow_unsafe_ops=true", unsafe])
    with pytest.raises(RecipeError, match="'video_split_by_scen_mapper' is not known"):
        check_recipe(path, ["allow_unsafe_ops=true", unsafe.replace("scene", "scen")])


def test_several_processes_are_refused_where_one_trains(tmp_path: Path) -> None:
    text = (
        "recipe: 1\nmode: offline\nname: x\nrun_dir: r\nbuffer: {uri: b}\nmodel: {path: m}\n"
        "placement: {use: local, trainer: {processes: 2}}\nstages: [{algorithm: dpo}]\n"
    )
    path = tmp_path / "offline.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match="in mode offline one process trains"):
        check_recipe(path)
    path.write_text(text.replace("processes: 2", "processes: 1"))
    check_recipe(path)


@pytest.mark.slow
def test_a_taskset_keeps_the_metadata_that_a_selector_reads(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(
        '{"question": "1+1=", "answer": "2", "rates": {"weak": 0.25, "strong": 0.75}}\n'
    )
    path = write_recipe(tmp_path)
    taskset = (
        f"tasks.0={{name: sums, source: {{use: jsonl, path: '{tmp_path}/tasks.jsonl'}}, metadata: FIELDS}}"
    )
    selector = "selector={use: interpolated, args: {weak: rates.weak, strong: rates.strong}}"
    with pytest.raises(RecipeError, match=r"reads rates\.strong in the tasks' metadata"):
        load_recipe(path, [taskset.replace("FIELDS", "[rates.weak]"), selector])
    recipe = load_recipe(path, [taskset.replace("FIELDS", "[rates.weak, rates.strong]"), selector])
    tasks = taskset_tasks(recipe.tasks[0])
    assert tasks[0].metadata == {"rates.weak": 0.25, "rates.strong": 0.75}
    made = make_selector(recipe.selector.use, recipe.selector.args, tasks, 0)
    assert made.select(1) == [tasks[0].key]
    assert "metadata" not in load_recipe(path).saved()["tasks"][0], "older runs keep their hash"
    load_recipe(path, ["tasks.0={name: sums, source: {use: stored}}", selector])  # nobody knows what it keeps


def test_selectors_inside_others_say_what_they_need() -> None:
    inner = {"use": "hierarchical", "args": {"embedding": "e"}}
    assert needed_metadata("mixture", {"inner": inner}) == {"e"}
    assert needed_metadata("mixture", {}) == needed_metadata("hierarchical", {}) == set()


def test_names_are_those_of_the_components() -> None:
    assert set(names.SAMPLERS) == set(POLICIES)
    assert set(names.WORKFLOWS) == set(WORKFLOWS) == set(WORKFLOW_ARGS)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_arguments_are_those_of_the_constructors(name: str) -> None:
    found: dict[str, inspect.Parameter] = {}
    for kind in WORKFLOWS[name].__mro__[:-1]:
        parameters = inspect.signature(kind.__init__).parameters.values()
        found |= {one.name: one for one in parameters if one.kind is one.KEYWORD_ONLY} | found
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    assert sorted(found) == sorted(WORKFLOW_ARGS[name])
    own = inspect.signature(WORKFLOWS[name].__init__).parameters.values()
    needed = [one.name for one in own if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    assert needed == [NEEDED_ARGS[name]] if name in NEEDED_ARGS else not needed


@pytest.mark.heavy
def test_checking_names_imports_no_heavy_package(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rft_data.recipe.load import check_recipe; "
        "check_recipe(Path(sys.argv[1]), ['explorer.engine={use: vllm, options: {max_num_seqs: 8}}', "
        "'allow_unsafe_ops=true', 'experience_ops.0={video_split_by_scene_mapper: {}}']); "
        "print([m for m in ('torch', 'vllm', 'trl', 'ray', 'data_juicer', 'lancedb') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(write_recipe(tmp_path))], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
