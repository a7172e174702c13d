"""`rft recipe validate` finds all mistakes of a recipe at once, with their places, in under a second."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from explorers.rewards.registry import make_reward
from rft_data.core.errors import IntegrityError, RecipeError
from rft_data.core.lookup import OWN_CODE, load
from rft_data.recipe import load_recipe
from rft_data.recipe.explain import explain
from rft_data.recipe.layers import read_layers
from rft_data.recipe.load import validate_recipe
from rft_data.recipe.names import TRACKERS
from rft_data.recipe.shipped import shipped_recipe
from rft_data.run.watch.trackers import CALLBACKS, TENSORBOARD
from tests.rft_data.run.test_online import write_recipe

MEASURED = """\
recipe: 1
name: measured
mode: eval
run_dir: {root}/run
buffer: {{uri: {root}/buffer}}
models: [one]
tasks: [{{name: sums, source: {{use: reasoning_gym, dataset: chain_sum, size: 4}}}}]
evaluation: {{limit: 4}}
explorer:
  engine: {{use: transformers, max_model_len: 64}}
  max_tokens: 8
  reward: [{{use: exact_answer}}]
"""
MANY = {
    "explorer.reward": ("[{use: exact_anser}]", r"explorer\.reward\.0\.use: .*did you mean 'exact_answer'"),
    "explorer.group_size": ("1", r"explorer\.group_size: 'group_size' is 1; grpo .* at least 2"),
    "explorer.max_tokens": ("64", r"explorer\.max_tokens: completions of 64 tokens .*max_model_len 64"),
    "tasks": (
        "[{name: a, source: {use: jsonl, path: nowhere.jsonl}}, {name: a, source: {use: stored}}]",
        r"tasks\.0\.source\.path: there is no file 'nowhere\.jsonl'",
    ),
    "model": ("{path: ./no_model}", r"model\.path: './no_model' is not there"),
    "sampler": ("{use: fifoo}", r"sampler: .*did you mean 'fifo'"),
    "monitor": ("{trackers: [wandbb]}", r"monitor\.trackers\.0: .*did you mean 'wandb'"),
    "stages.0.trl": ("{learning_rat: 1.0}", r"stages\.0\.trl\.learning_rat: .*did you mean 'learning_rate'"),
    "stages.1.trl": (
        "{learning_rate: fast, max_completion_length: 9, top_p: 0.9}",
        r"stages\.1\.trl\.learning_rate: found 'fast' \(str\); TRL wants float",
    ),
    "stages.1.loss": ("{use: mine.py:loss}", r"stages\.1\.loss\.use: .*there is no file 'mine\.py'"),
    "selector": ("{use: 'no_module:Mine'}", r"selector\.use: .*there is no module 'no_module'"),
    "experience_ops.0": (
        "{reward_range_filter: {min_rewards: 0}}",
        r"experience_ops\.0\.reward_range_filter\.min_rewards: .*did you mean 'min_reward'",
    ),
}


def mistakes(path: Path, *overrides: str) -> str:
    with pytest.raises(RecipeError) as refused:
        validate_recipe(path, overrides)
    return str(refused.value)


@pytest.mark.slow
def test_a_recipe_with_a_dozen_mistakes_names_all_of_them_at_once(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    changed = read_layers(path, [f"{key}={value}" for key, (value, _) in MANY.items()])
    with path.open("w") as file:
        YAML().dump(changed.tree, file)
    found = mistakes(path)
    for _, message in MANY.values():
        assert re.search(rf"small\.yaml:\d+:\d+ {message}", found), (message, found)
    for message in (
        "nothing reads it",
        r"top_p: it cannot be set here: sampling is",
        r"tasks\.0 is called 'a'",
    ):
        assert re.search(message, found)
    lines = [int(found) for found in re.findall(r"small\.yaml:(\d+):", found)]
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "stages.1.trl.model_init_kwargs={tp_plan: auto}",
            r"model_init_kwargs\.tp_plan: .* those of one tensor-parallel model would have to train the same",
        ),
        ("stages.1.trl.parallelism_config={tp_size: 2}", r"parallelism_config: it cannot be set here: every"),
        (
            "placement={use: local, trainer: {processes: 2, over_nodes: true}}",
            "it spreads several processes over the nodes of a Ray cluster: give use: ray",
        ),
        ("placement={use: ray, trainer: {shard: fsdp2}}", "with one process, which has no other to share"),
        ("stages.1.trl.num_iterations=2", r"num_iterations: found 2; it must be 1: one lease"),
        ("stages.1.loss={use: opmd, args: {tua: 1}}", r"loss\.args\.tua: .*did you mean 'tau'"),
        ("stages.1.loss={use: opmd, args: {form: odd}}", r"found 'odd'; loss 'opmd' wants Literal"),
        (
            "stages.1.trl.loss_type=dpao",
            r"stages\.1\.trl\.loss_type: 'dpao' is not known; did you mean 'dapo'",
        ),
        ("stages.0={algorithm: dpo, trl: {loss_type: [hing]}}", r"loss_type: 'hing' is not .*mean 'hinge'"),
        (
            "stages.0={algorithm: kto, trl: {loss_type: bco}}",
            r"loss_type: 'bco' is not .* there are kto,",
        ),
        ("stages.1.batch_ops=[{whiten: {gama: 1}}]", r"batch_ops\.0\.whiten\.gama: .* has no argument"),
        ("experience_ops.2={grpo_advantage_mapper: {eps: small}}", r"eps: found 'small'; .* wants float"),
        ("sampler={use: replay, args: {windw: 3}}", r"sampler: sampler 'replay': .*'windw'"),
        ("task_ops=[{text_length_filter: {min_length: 1}}]", r"text_length_filter\.min_length: .*'min_len'"),
        ("stages.1.algorithm='./nowhere.py:MINE'", r"stages\.1\.algorithm: .*there is no file"),
        ("model={path: 'org/name/more'}", r"model\.path: 'org/name/more' is not there"),
        ("buffer.uri=/proc/r/buffer", r"buffer\.uri: '/proc/r/buffer' cannot be written: /proc: \w+"),
        ("run_dir=pyproject.toml/run", r"run_dir: .* cannot be written: .*pyproject\.toml is a file"),
        ("imports=[{path: gone.csv}]", r"imports\.0\.path: there is no file 'gone\.csv'"),
        ("imports=[{source: {use: file, path: gone.csv}}]", r"imports\.0\.source\.path: there is no file"),
        ("imports=[{path: pyproject.toml}]", r"imports\.0\.path: pyproject\.toml: files called '\.toml'"),
        ("imports=[{source: {use: stored}}]", r"imports\.0\.source: .*chosen by a stage's 'data'"),
        ("imports=[{path: a.csv, source: {use: file, path: a.csv}}]", "exactly one of 'path' and 'source'"),
        (
            "imports=[{source: {use: file, path: pyproject.toml}, limit: 3}]",
            r"imports\.0: 'limit' belongs to 'path'; write it inside 'source'",
        ),
        (
            "tasks.0.source={use: reasoning_gym, dataset: chain_sum, size: 9, limit: 3}",
            r"source\.limit: source 'reasoning_gym' has no 'limit': it makes 'size' tasks",
        ),
        (
            "tasks.0.source={use: jsonl, path: pyproject.toml, where: 'n > 1'}",
            r"source\.where: source 'jsonl' has no 'where': write use: file",
        ),
        (
            "tasks.0.source={use: 'rows.py:rows', streaming: true}",
            r"source\.streaming: source 'rows\.py:rows' has no 'streaming': rows that it yields",
        ),
        (
            "imports=[{path: pyproject.toml, format: gsm}]",
            r"imports\.0\.format: .*'gsm' to read; did you mean",
        ),
        ("stages.1.teacher=teachers/one", r"stages\.1\.teacher: 'teachers/one' is not there"),
    ],
)
def test_an_argument_or_a_path_that_cannot_work_is_refused(
    tmp_path: Path, override: str, message: str
) -> None:
    assert re.search(message, mistakes(write_recipe(tmp_path), override))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"prompt": "questoin"},
            r"tasks\.0\.prompt: .*no column 'questoin'; did you mean 'question'\?.*: question,",
        ),
        ({"prompt": "{question} {meta.lang}"}, r"tasks\.0\.prompt: .*no column 'meta\.lang'"),
        ({"prompt": "question"}, r"tasks\.0: .*no column 'answer'; name one of its columns"),
        ({"prompt": "question", "answer": None, "metadata": ["tests"]}, r"tasks\.0\.metadata: .*'tests'"),
        ({"prompt": "{question"}, r"tasks\.0\.prompt: the template '\{question' is broken"),
        ({"system": "{tone}"}, r"tasks\.0\.system: .*no column 'tone'"),
        ({}, r"tasks\.0\.source\.path: .*the columns are meta, question; no format fits them"),
        ({"where": "levle = 1"}, r"tasks\.0\.source\.where: 'where' cannot be evaluated: .*levle"),
        ({"file": "nowhere.parquet"}, r"tasks\.0\.source\.path: there is no file"),
        ({"file": "text.txt"}, r"tasks\.0\.source\.path: .*files called '\.txt' are not read"),
        ({"file": "cut.jsonl"}, r"tasks\.0\.source\.path: .*cut\.jsonl:1: not JSON"),
        (
            {"file": "", "use": "file"},
            r"tasks\.0\.source\.path: .* is a folder; give a file, or write use: hugg",
        ),
        (
            {"file": "text.txt", "use": "huggingface"},
            r"tasks\.0\.source\.path: .* is a file; write use: file",
        ),
        ({"file": "gone", "use": "huggingface"}, r"tasks\.0\.source\.path: .*gone' is not there, seen from"),
    ],
)
def test_a_taskset_that_does_not_fit_its_file_is_refused(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1?", "meta": {"level": 1}}\n')
    (tmp_path / "text.txt").write_text("1+1?")
    (tmp_path / "cut.jsonl").write_text('{"question":\n')
    source = {"use": fields.pop("use", "file"), "path": str(tmp_path / str(fields.pop("file", "rows.jsonl")))}
    if where := fields.pop("where", None):
        source["where"] = where
    tasks = json.dumps([{"name": "a", "source": source, **fields}])
    assert re.search(rf"command line {message}", mistakes(write_recipe(tmp_path), f"tasks={tasks}"))


@pytest.mark.slow
def test_columns_that_only_later_rows_have_are_not_refused(tmp_path: Path) -> None:
    path, rows = write_recipe(tmp_path), [{"question": "q", "answer": "a"}] * 1000
    lines = [json.dumps(row) for row in [*rows, {"question": "q", "answer": "a", "level": 3}]]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    source = {"use": "file", "path": str(tmp_path / "rows.jsonl"), "where": "level = 3"}
    validate_recipe(path, [f"tasks={json.dumps([{'name': 'sums', 'source': source}])}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "stages.1.lora={r: 4}",
            r"stages\.1\.lora: the model in '.*' looks at images, which 'lora' does not",
        ),
        ("stages.1.critic={}", r"stages\.1\.critic: the model in '.*' looks at images, which 'critic'"),
        ("stages.1.algorithm=ppo", r"the model in '.*' looks at images, which 'critic' does not"),
        ("stages.0={algorithm: reward_model}", r"stages\.0\.algorithm: .*made from a model of text"),
        ("explorer.engine={use: vllm, swap: recompute}", r"engine\.swap: .*what old weights saw in them"),
    ],
)
def test_what_does_not_look_at_images_is_refused_for_a_model_that_does(
    tmp_path: Path, override: str, message: str
) -> None:
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    (tmp_path / "tokenizer.json").touch()
    path, model = write_recipe(tmp_path), f"model={{path: {tmp_path}}}"
    validate_recipe(path, [model])
    assert re.search(message, mistakes(path, model, override))


LINEAR = '{"max_position_embeddings": 256, "rope_scaling": {"type": "linear", "factor": 2.0}}'
LAYERS = json.dumps(
    {
        "seq_length": 256,
        "rope_parameters": {
            "full": {"rope_type": "linear", "factor": 2},
            "other": {"rope_type": "default"},
        },
    }
)


@pytest.mark.parametrize(
    ("config", "engine", "most"),
    [
        ('{"max_position_embeddings": 256}', "{use: vllm, max_model_len: 2048}", 256),
        ('{"max_position_embeddings": 128}', "{use: vllm}", 128),
        ('{"n_positions": 256}', "{use: routed, max_model_len: 300, options: {engines: [{use: vllm}]}}", 256),
        ('{"text_config": {"max_position_embeddings": 256}}', "{use: vllm, max_model_len: 300}", 256),
        ('{"max_position_embeddings": 256, "model_max_length": 512}', "{use: vllm, max_model_len: 513}", 512),
        (LINEAR, "{use: vllm, max_model_len: 513}", 512),
        (LAYERS, "{use: vllm, max_model_len: 600}", 512),
        (LINEAR.replace("linear", "llama3"), "{use: vllm, max_model_len: 257}", 256),
        (LINEAR, "{use: vllm, max_model_len: 512}", None),
        (LINEAR.replace("linear", "yarn"), "{use: vllm, max_model_len: 512}", None),
        ("{}", "{use: vllm, max_model_len: 99999}", None),
        ('{"max_position_embeddings": null}', "{use: vllm, max_model_len: 99999}", None),
        ('{"max_position_embeddings": 256}', "{use: transformers, max_model_len: 2048}", None),
        ('{"model_type": "gpt2", "n_positions": 128}', "{use: transformers, max_model_len: 129}", 128),
        ('{"model_type": "gpt2", "n_positions": 128}', "{use: transformers}", 128),
        ('{"model_type": "gpt2", "n_positions": 128}', "{use: transformers, max_model_len: 128}", None),
        (
            '{"max_position_embeddings": 256}',
            "{use: vllm, max_model_len: 300, options: {hf_overrides: {max_position_embeddings: 300}}}",
            None,
        ),
    ],
)
def test_a_length_above_what_the_model_takes_is_refused(
    tmp_path: Path, config: str, engine: str, most: int | None
) -> None:
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "tokenizer.json").touch()
    overrides = [f"model={{path: {tmp_path}}}", f"explorer.engine={engine}"]
    path = write_recipe(tmp_path)
    if most is None:
        validate_recipe(path, overrides)
    else:
        found = mistakes(path, *overrides)
        assert f"the model '{tmp_path}' takes at most {most} tokens; give {most} or less" in found
        assert len(found.splitlines()) == 2


def test_a_length_above_what_a_model_takes_that_is_built_is_refused(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    found = mistakes(path, "explorer.engine={use: vllm, max_model_len: 2048}")
    assert re.search(
        r"explorer\.engine\.max_model_len: max_model_len is 2048, and .*or model\.build\.max_p", found
    )
    with pytest.raises(RecipeError, match="takes at most 256 tokens"):
        load_recipe(path, ["explorer.engine={use: vllm, max_model_len: 2048}"])


@pytest.mark.parametrize(
    ("file", "text", "is_one"),
    [
        ("tokenizer.json", "{}", True),
        ("spiece.model", "", True),
        ("vocab.txt", "", True),
        ("tokenizer_config.json", '{"tokenizer_class": "ByT5Tokenizer"}', True),
        ("tokenizer_config.json", '{"tokenizer_class": "Qwen2Tokenizer"}', False),
        ("chat_template.jinja", "", False),
    ],
)
@pytest.mark.parametrize("key", ["model", "models"])
def test_a_model_without_a_tokenizer_is_refused(
    tmp_path: Path, key: str, file: str, text: str, is_one: bool
) -> None:
    (tmp_path / "m1").mkdir()
    (tmp_path / "m1" / "config.json").write_text("{}")
    (tmp_path / "m1" / file).write_text(text)
    (tmp_path / "eval.yaml").write_text(MEASURED.format(root=tmp_path))
    path, change = write_recipe(tmp_path), f"model={{path: {tmp_path}/m1}}"
    if key == "models":
        path, change = tmp_path / "eval.yaml", f"models=[{tmp_path}/m*]"
    if is_one:
        validate_recipe(path, [change])
    else:
        assert "m1' has no tokenizer (no tokenizer.json, tokenizer.model or vocab" in mistakes(path, change)


def test_a_config_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(IntegrityError, match=r"config\.json is not JSON"):
        validate_recipe(write_recipe(tmp_path), [f"model={{path: {tmp_path}}}"])


SPREAD = "{tensor_parallel_size: 2, data_parallel_size: 2}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["explorer.engine.options={tensor_parallel_size: 3}"],
            r"explorer\.engine\.options\.tensor_parallel_size: the model has 2 attention heads, which 3 "
            r"devices cannot share evenly; give one of 1, 2",
        ),
        (
            ["explorer.engine.options={pipeline_parallel_size: 9}"],
            r"options\.pipeline_parallel_size: the model has 2 layers, fewer than 9 devices",
        ),
        (
            ["explorer.engine.options={enable_expert_parallel: true, tensor_parallel_size: 2}"],
            r"options\.enable_expert_parallel: the model has no experts to divide",
        ),
        (
            ["explorer.engine.options={data_parallel_size: 0}"],
            r"options\.data_parallel_size: 0; give a whole number from 1",
        ),
        (
            [f"explorer.engine.options={SPREAD}", "placement={use: local, explorers: {gpus: 1}}"],
            r"placement\.explorers\.gpus: each explorer has 1, and its engine spreads over 4 devices "
            r"\(tensor 2 x data 2\); give 4",
        ),
        (
            [
                f"explorer.engine.options={SPREAD}",
                "explorer.engine.transport={use: ipc}",
                "placement.use=ray",
            ],
            r"'explorer\.engine\.transport' is 'ipc', .* on Ray no explorer shares a GPU .* use 'nccl'",
        ),
        (
            ["explorer.engine.use=transformers", "explorer.engine.options={tensor_parallel_size: 2}"],
            r"explorer\.engine\.options: the engine 'transformers' has no 'tensor_parallel_size': it is one "
            r"process on one device",
        ),
        (
            [
                "explorer.engine.use=routed",
                "explorer.engine.options={engines: [{use: vllm, options: {tensor_parallel_size: 2}}]}",
            ],
            r"options\.engines\.0\.options\.tensor_parallel_size: each engine of 'routed' is on one device",
        ),
        (
            [f"explorer.engine.options={SPREAD}", "placement={use: local, explorers: {gpus: 4, count: 2}}"],
            r"placement\.explorers\.gpus: 2 explorers with 4 GPUs and a trainer with 0 need 8, and this "
            r"machine shows 4",
        ),
    ],
)
def test_an_engine_that_cannot_spread_so_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    found = mistakes(write_recipe(tmp_path), "explorer.engine.use=vllm", *overrides)
    assert re.search(rf"(:\d+:\d+|command line): {message}|{message}", found), found
    assert len(found.splitlines()) == 2


PROGRAM = "explorer.workflow={use: program, args: {command: [python, a.py], server: %s}}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "engine", "message"),
    [
        ("vllm", "{use: transformers}", "explorer.engine.use is 'transformers', and it needs 'vllm'"),
        ("{use: vllm, tool_parser: hermes}", "{use: routed}", "explorer.engine.use is 'routed', and it"),
        ("vllm", f"{{use: vllm, options: {SPREAD}}}", "options spread the engine (tensor 2 x data 2)"),
        ("vlm", "{use: vllm}", "server is 'vlm'; wanted one of: small, vllm"),
        ("{use: vllm, parser: hermes}", "{use: vllm}", "server has 'parser'; with"),
        ("vllm", "{use: vllm}", "looks at images, and only text can be recorded there"),
    ],
)
def test_a_server_that_the_engine_cannot_have_is_refused_before_a_run(
    tmp_path: Path, server: str, engine: str, message: str
) -> None:
    changes = [PROGRAM % server, f"explorer.engine={engine}"]
    if "images" in message:
        (tmp_path / "config.json").write_text('{"vision_config": {}}')
        changes.append(f"model={{path: {tmp_path}}}")
    path = write_recipe(tmp_path)
    found = mistakes(path, *changes)
    assert re.search(rf"command line explorer\.workflow\.args\.server: .*{re.escape(message)}", found), found
    with pytest.raises(RecipeError, match=re.escape(message)):
        load_recipe(path, changes)
    named = changes[0].replace("workflow={", "workflows={played: {") + "}"
    assert "explorer.workflows.played.args.server: " in mistakes(path, named, *changes[1:])
    if "options" not in engine:
        validate_recipe(path, [PROGRAM % "{use: vllm, tool_parser: hermes}", "explorer.engine={use: vllm}"])


ON_SECOND = "explorer.reward=[{use: reward_model, args: {model: scorer, device: 'cuda:1'}}]"


@pytest.mark.parametrize("gpus", [0, 0.5, 1])
def test_a_reward_model_on_a_gpu_that_its_explorer_does_not_see_is_refused(
    tmp_path: Path, gpus: float
) -> None:
    place = f"placement={{use: local, explorers: {{gpus: {gpus}}}}}"
    found = mistakes(write_recipe(tmp_path), place, ON_SECOND)
    assert f"placement.explorers.gpus {gpus:g} of the GPUs, numbered from 0, and 'cuda:1' is none" in found
    assert "give 2 there" in found


@pytest.mark.slow
def test_a_reward_model_has_a_gpu_beside_those_of_the_engine(tmp_path: Path) -> None:
    spread = ["explorer.engine.use=vllm", "explorer.engine.options={tensor_parallel_size: 2}"]
    third = ON_SECOND.replace("cuda:1", "cuda:2")
    path, places = write_recipe(tmp_path), "placement={use: local, explorers: {gpus: %d}}"
    assert "and its reward models have [2]; give 3" in mistakes(path, *spread, places % 2, third)
    validate_recipe(path, [*spread, places % 3, third])


SHARED = "placement={use: local, colocate: true, explorers: {gpus: 1}, trainer: {gpus: 1}}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["placement={use: local, colocate: true}"], r"gpus: 'colocate' shares GPUs, and this is 0 on a"),
        (
            ["placement={use: local, colocate: true, explorers: {gpus: 1}}"],
            r"'explorers\.gpus' is 1, 'trainer\.gpus' 0; .*or both 0 to try the turns on a CPU",
        ),
        (["placement={use: inline, colocate: true}"], r"'colocate' is for 'use: local' with one explorer"),
        ([SHARED, "explorer.engine.use=transformers"], r"colocate: the engine 'transformers' cannot sleep"),
        (
            [SHARED, "sync={every: 1, max_staleness: 1}"],
            r"colocate: engine and trainer work at the same time",
        ),
    ],
)
def test_gpus_that_cannot_be_used_in_turns_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert re.search(message, mistakes(write_recipe(tmp_path), "explorer.engine.use=vllm", *overrides))


@pytest.mark.slow
def test_what_an_engine_over_several_devices_needs_is_explained(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    overrides = ["explorer.engine.use=vllm", f"explorer.engine.options={SPREAD}", "placement.use=local"]
    assert (
        "# engine vllm, served: tensor 2 x data 2; for each of 3 explorers 4 CPU workers and 7 processes "
        "beside it (4 workers, 2 engine cores, a coordinator); in all 12 CPU workers, 24 processes"
    ) in explain(path, [*overrides, "placement.explorers.count=3"])
    assert not any("served" in line for line in explain(path, overrides[:1]))


def test_own_code_is_looked_for_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit\nif True:\n    def brief(task, completion): ...\n")
    path = write_recipe(tmp_path)
    validate_recipe(path, ["explorer.reward=[{use: './mine.py:brief'}]"])
    assert re.search(
        r"mine\.py has no 'breif'; did you mean 'brief'",
        mistakes(path, "explorer.reward=[{use: 'mine.py:breif'}]"),
    )
    (tmp_path / "mine.py").write_text("def (:\n")
    assert "mine.py:1 is not valid Python" in mistakes(path, "explorer.reward=[{use: 'mine.py:brief'}]")


def test_files_and_modules_beside_the_recipe_can_be_named_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN_CODE, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "my_reward_of_a_test.py").write_text("def brief(task, completion):\n    return 0.5\n")
    (folder / "rows.jsonl").write_text("")
    path = write_recipe(folder)
    overrides = [
        "explorer.reward=[{use: './my_reward_of_a_test.py:brief'}]",
        "tasks=[{name: a, source: {use: jsonl, path: rows.jsonl}}]",
        "experts=[]",
        "stages=[{algorithm: grpo, groups_per_step: 2, steps: 1, loss: {use: 'my_reward_of_a_test:brief'}}]",
    ]
    monkeypatch.chdir(tmp_path)
    validate_recipe(path, overrides)
    recipe = load_recipe(path, overrides)
    assert recipe.saved()["explorer"]["reward"][0]["use"] == "project/my_reward_of_a_test.py:brief"  # type: ignore[index]
    assert recipe.saved()["tasks"][0]["source"]["path"] == "project/rows.jsonl"  # type: ignore[index]
    assert make_reward("project/my_reward_of_a_test.py:brief", {})(None, "") == 0.5
    assert load("my_reward_of_a_test:brief", "loss")(None, "") == 0.5
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from rft_data.core.lookup import load; load('my_reward_of_a_test:brief', 'x')",
        ],
        check=False,
    )
    assert found.returncode == 0, "processes that a run starts find it too"


@pytest.mark.slow
def test_own_code_may_lie_in_folders_without_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "plain_of_a_test" / "inner"
    folder.mkdir(parents=True)
    (folder / "rewards.py").write_text("def brief(task, completion):\n    return 0.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = write_recipe(tmp_path)
    validate_recipe(path, ["explorer.reward=[{use: 'plain_of_a_test.inner.rewards:brief'}]"])
    assert "has no 'brif'" in mistakes(path, "explorer.reward=[{use: 'plain_of_a_test.inner.rewards:brif'}]")


@pytest.mark.slow
def test_a_model_of_the_hub_is_refused_only_where_it_cannot_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, hub = write_recipe(tmp_path), "model={path: org/name}"
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    validate_recipe(path, [hub])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert "neither a folder" in mistakes(path, hub)
    (tmp_path / "hub" / "models--org--name" / "snapshots" / "1").mkdir(parents=True)
    validate_recipe(path, [hub])


def test_a_run_refuses_what_needs_no_machine_to_be_seen(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"command line explorer\.max_tokens: .*no room for a prompt"):
        load_recipe(write_recipe(tmp_path), ["explorer.max_tokens=999"])


def test_an_empty_recipe_is_named_as_that(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# later\n")
    with pytest.raises(RecipeError, match=r"empty\.yaml is empty; a recipe begins with"):
        load_recipe(tmp_path / "empty.yaml")


def test_the_trackers_are_those_that_runs_know() -> None:
    assert set(TRACKERS) == {TENSORBOARD, *CALLBACKS}


@pytest.mark.heavy
def test_validate_loads_no_library_for_all_that(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    code = (
        "import resource, sys; from pathlib import Path; from rft_data.recipe.load import validate_recipe;"
        "validate_recipe(Path(sys.argv[1]), ['stages.1.loss={use: opmd}']);"
        "heavy = {'torch', 'trl', 'vllm', 'transformers', 'data_juicer', 'ray'} & set(sys.modules);"
        "assert not heavy, heavy; used = resource.getrusage(resource.RUSAGE_SELF);"
        "assert used.ru_utime < 2, used.ru_utime"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


@pytest.mark.slow
def test_rows_to_import_or_to_score_are_looked_at(tmp_path: Path) -> None:
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"frage": "1?", "antwort": "1"}\n')
    path = write_recipe(tmp_path)
    assert re.search(r"imports\.0\.path: .*no format fits them", mistakes(path, f"imports=[{{path: {odd}}}]"))
    named = f"imports=[{{source: {{use: file, path: {odd}, where: 'frge = 1'}}, format: trl-prompt}}]"
    assert re.search(r"imports\.0\.source\.where: .*cannot be evaluated", mistakes(path, named))
    scored = f"rollouts.0={{name: x, taskset: gsm8k-test, source: {{use: file, path: {odd}}}, "
    answers = "prompt: frage, completions: [{name: a, text: antwrt}]}"
    found = mistakes(shipped_recipe("gsm8k_data").path, scored + answers)
    assert re.search(
        r"rollouts\.0\.completions\.0\.text: .*no column 'antwrt'; did you mean 'antwort'", found
    )
    assert "rollouts.0.prompt" not in found
