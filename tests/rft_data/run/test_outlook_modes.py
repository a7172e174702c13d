"""What `rft recipe explain` says of every mode, for models of the hub, and for GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rft_data.buffer import Buffer
from rft_data.core.errors import IntegrityError, RecipeError
from rft_data.core.files import MANIFEST_FILE
from rft_data.core.rows import Experience, PreferencePair
from rft_data.core.words import PairSource, RowSource, RunState
from rft_data.recipe.load import load_recipe
from rft_data.recipe.recipe import Recipe, RunRecipe
from rft_data.run.outlook.hub_models import known_size
from rft_data.run.outlook.lines import outlook_lines
from rft_data.run.outlook.model_config import FAMILIES, config_size
from rft_data.run.outlook.places import Cache, Place
from rft_data.run.outlook.resuming import folder_line
from rft_data.run.outlook.verdicts import Cards, cards_in, given_cards, verdicts
from rft_data.run.record import RECIPE_FILE, RunRecord, write_record

RECIPES = Path(__file__).parents[3] / "recipes"
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 200,
}


def shipped(name: str, *overrides: str) -> Recipe:
    return load_recipe(RECIPES / f"{name}.yaml", overrides)


def said(recipe: Recipe, gpu_memory: str | None = None) -> dict[str, str]:
    """The outlook by what it is about; the lines of one subject together."""
    found: dict[str, str] = {}
    for line in outlook_lines(recipe, gpu_memory):
        what, words = line[:12].strip(), line[12:].strip()
        found[what] = f"{found[what]}\n{words}" if what in found else words
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_config_alone_says_every_tensor(family: str, tied: bool) -> None:
    experts = {"num_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 24, "mlp_only_layers": [1]}
    mixed = experts if family == "qwen3_moe" else {"num_local_experts": 4} if family == "mixtral" else {}
    config = AutoConfig.for_model(
        family, **SMALL, **mixed, head_dim=32, pad_token_id=0, tie_word_embeddings=tied
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    found = config_size(config.to_dict())
    assert found is not None
    assert found.shapes == {name: tuple(one.shape) for name, one in model.named_parameters()}
    assert found.key_values == 2 * 32
    assert found.context == config.max_position_embeddings


PUBLISHED = {
    "Qwen/Qwen3-30B-A3B": (
        30_532_122_624,
        6144,  # 8 experts of 768
        "qwen3_moe 2048 6144 32 48 4 151936 128",
        {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    ),
    "mistralai/Mixtral-8x7B-v0.1": (
        46_702_792_704,
        2 * 14336,
        "mixtral 4096 14336 32 32 8 32000 128",
        {"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "google/gemma-2b": (2_506_172_416, 16384, "gemma 2048 16384 8 18 1 256000 256", {}),
    "google/gemma-2-2b": (2_614_341_888, 9216, "gemma2 2304 9216 8 26 4 256000 256", {}),
    "google/gemma-3-1b-it": (999_885_952, 6912, "gemma3_text 1152 6912 4 26 1 262144 256", {}),
    "Qwen/Qwen2.5-0.5B-Instruct": (
        494_032_768,
        4864,
        "qwen2 896 4864 14 24 2 151936 64",
        {"tie_word_embeddings": True},
    ),
}
"""Parameters as the hub's safetensors have them, the width of a token's feed-forward part, and the config."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_parameters_that_their_configs_say(name: str) -> None:
    parameters, wide, numbers, others = PUBLISHED[name]
    keys = ("model_type", *SMALL, "head_dim")
    family, *sizes = numbers.split()
    found = config_size(dict(zip(keys, (family, *map(int, sizes)), strict=True)) | others)
    assert found is not None
    assert (found.parameters, found.intermediate) == (parameters, wide)


@pytest.mark.slow
def test_a_model_of_the_hub_is_known_by_what_is_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repo = "somebody/some-model"
    assert known_size(Path(repo)) is None
    stored = tmp_path / "models--somebody--some-model"
    for commit in ("older", "newest"):
        (stored / "snapshots" / commit).mkdir(parents=True)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("newest")
    config = stored / "snapshots" / "newest" / "config.json"
    config.write_text(json.dumps({"model_type": "qwen2", **SMALL, "tie_word_embeddings": True}))
    found = known_size(Path(repo))
    assert found is not None
    assert (found.layers, found.vocabulary) == (2, 200)
    assert "parameters" in said(shipped("gsm8k_1gpu", f"model.path={repo}"))["model"]
    config.write_text(json.dumps({"model_type": "mamba", **SMALL}))
    assert "its config.json is none of llama" in said(shipped("gsm8k_1gpu", f"model.path={repo}"))["memory"]
    config.write_text('{"model_type": "qwen2"}')
    with pytest.raises(IntegrityError, match="does not say how large its model is"):
        known_size(Path(repo))


def rows(uri: Path) -> None:
    """A buffer with 20 rows in 10 groups, 6 of which have two rewards, and 5 pairs."""
    ask, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}
    with Buffer(uri) as buffer:
        buffer.append(
            [
                Experience(
                    experience_id=f"e{number}",
                    source=RowSource.IMPORT,
                    run_id="r",
                    taskset="t",
                    task_id=f"t{number // 2}",
                    group_id=f"g{number // 2}",
                    member=number % 2,
                    messages=(ask, answer),
                    prompt_messages=1,
                    reward=float(number % 2) if number < 12 else 1.0,
                )
                for number in range(20)
            ]
        )
        buffer.add_preferences(
            [
                PreferencePair(
                    source=PairSource.HUMAN,
                    taskset="t",
                    task_id=f"t{number}",
                    messages=(ask,),
                    chosen=(answer,),
                    rejected=({"role": "assistant", "content": str(number)},),
                )
                for number in range(5)
            ]
        )


@pytest.mark.slow
def test_an_offline_recipe_says_its_rows_updates_and_memory(tmp_path: Path) -> None:
    path, uri = tmp_path / "offline.yaml", tmp_path / "buffer"
    path.write_text(f"""recipe: 1
name: taught
mode: offline
run_dir: {tmp_path}/run
buffer: {{uri: {uri}}}
model: {{build: {{use: tiny_qwen2}}}}
stages:
- {{algorithm: sft, data: {{min_reward: 1.0}}, trl: {{per_device_train_batch_size: 2, num_train_epochs: 2,
   gradient_accumulation_steps: 2, max_length: 64}}}}
- {{algorithm: kto, trl: {{max_steps: 10}}}}
- {{algorithm: dpo, data: {{pairs: mined}}}}
- {{algorithm: reward_model}}
""")
    before = said(load_recipe(path))
    assert "how many there are is known when the buffer" in before["stage 0"]
    rows(uri)
    found = said(load_recipe(path))
    # 14 rows have a reward of 1: 6 of the groups with two, 8 of the others
    assert (
        found["stage 0"]
        == "sft: at most 14 rows in the buffer, 2 micro-batches of 2 rows an update: 4 updates an epoch, "
        "2 epochs = 8 updates"
    )
    assert "at most 20 rows" in found["stage 1"]
    assert found["stage 1"].endswith("10 updates = 3.33 epochs")
    assert "at most 6 pairs" in found["stage 2"]
    assert "at most 5 pairs" in found["stage 3"]
    memory = found["memory"].splitlines()
    assert memory[0].startswith("stage 0, sft: about")
    assert "stage 1, kto, if no row is longer than 256 tokens ('trl.max_length' cuts)" in memory[1]
    assert "reference" not in memory[0] + memory[3]
    assert "reference" in memory[1]
    assert "logits" not in memory[3]
    assert memory[4].startswith("on the CPU: about")
    each = [float(line.partition("about ")[2].partition(" MiB (")[0]) for line in memory[:4]]
    assert f"about {1 + max(each) / 1024:.4g} GiB" in memory[4], "of stages in turns the largest counts"
    assert "libraries in 1 process take 1 GiB of it" in memory[4]
    assert found["disk"].startswith("about 1")
    assert "4 trained models" in found["disk"]
    assert found["where"] == "one process"


@pytest.mark.slow
def test_exploring_and_measuring_say_their_rollouts_memory_and_disk() -> None:
    built = "model={build: {use: tiny_qwen2}, path: null}"
    found = said(shipped("sums_explore", built, "groups=120", "explorer.group_size=8"))
    assert found["groups"] == "120 groups x 8 rollouts = 960 rollouts"
    assert found["tokens"].endswith("46,080 in all")
    assert found["memory"].startswith("engine 'vllm': about")
    assert "of rows" in found["disk"]
    assert "are 0.0" in found["tasks"]
    unwritten = said(shipped("sums_eval", "evaluation={limit: 50, samples: 2}"))
    assert unwritten["rollouts"].startswith("at most 50 held-out tasks x 2 answers = 100 rollouts a model")
    assert "once an earlier run has written it" in unwritten["memory"]
    cleaned = said(shipped("task_curation"))
    assert cleaned["memory"].startswith("no model is loaded")
    assert "task_decontamination_filter" in cleaned["cleaned"]


def test_groups_to_train_on_are_counted(tmp_path: Path) -> None:
    buffer = f"buffer.uri={tmp_path}/buffer"
    assert "groups" not in said(shipped("sums_train", buffer))
    group: dict[str, object] = dict.fromkeys(("ordinal", "round", "attempt", "version", "version_min"), 0)
    group |= {"run_id": "sums-explore", "taskset": "t", "task_id": "t", "rewards": [1.0], "seqs": [0]}
    group |= {"error": "", "outcome": "arrived", "dropped_by": ""}
    with Buffer(tmp_path / "buffer") as opened:
        rows = [{**group, "group_id": f"g{n}"} for n in range(20)]
        rows[0]["dropped_by"], rows[1]["outcome"], rows[2]["run_id"] = "a_filter", "failed", "other"
        opened.add_rows("groups", rows)
    found = said(shipped("sums_train", buffer, "stages.0.groups_per_step=8", "stages.0.steps=8"))
    assert found["groups"] == (
        "17 of 'sums-explore' that operators kept: an epoch is 3 steps of 8, and 8 steps are 3.76 epochs"
    )


def test_evaluations_of_an_online_run_are_counted() -> None:
    found = said(shipped("quickstart", "evaluation={limit: 50, samples: 2, every: 20}", "stages.1.steps=60"))
    assert found["evaluation"] == (
        "at most 50 held-out tasks x 2 answers = 100 rollouts, before the first stage, after each, and every "
        "20 steps: 5 times, 500 rollouts in all"
    )
    assert "evaluation" not in said(shipped("quickstart", "~evaluation"))


@pytest.mark.slow
def test_an_epoch_is_counted_where_tasks_can_be(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps({"question": f"{n}?", "answer": "1"}) + "\n" for n in range(100)))
    source = f"tasks=[{{name: mine, heldout: 0.2, source: {{use: file, path: {file}, where: 'answer = 1'}}}}]"
    experts = ["experts=[{use: 'a:b', limit: 3, tasksets: [mine]}]"]
    found = said(shipped("quickstart", source, *experts, "stages.1.groups_per_step=16", "stages.1.steps=60"))
    assert found["tasks"] == (
        "about 80 to train on, 20 held out; a step plays 16 of them, an epoch is 5 steps, and 60 steps are "
        "12 epochs"
    )
    assert "at most 3 experts' rows" in found["stage 0"]
    own = "tasks=[{name: mine, source: {use: './rows.py:rows'}}]"
    assert "how many mine has is known when it is read" in said(shipped("quickstart", own, *experts))["tasks"]


GIB = 2**30
CARD = Cards(24 * GIB, "a card", 2)


def engine(weights: float, each: float, *, share: float = 0.5, sequences: int = 10) -> Place:
    cache = Cache(int(weights * GIB), sequences, int(each * GIB), share)
    parts = {"weights": cache.weights, "cache": cache.each * sequences}
    return Place("engine", 1, 1, parts, cache=cache)


def trainer(gib: float, *, shared: bool = False, gpus: float = 1) -> Place:
    return Place("trainer", 1, gpus, {"all": int(gib * GIB)}, shared, in_turns=True)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([trainer(20)], "fits, 4 GiB to spare: about 20 GiB of 24 GiB"),
        ([trainer(30)], "DOES NOT FIT, by 6 GiB"),
        ([trainer(13, gpus=0.5)], "DOES NOT FIT, by 1 GiB: about 13 GiB of 12 GiB"),
        ([engine(2, 0.5)], "fits, with all 10 sequences"),
        ([engine(2, 2)], "fits, with 5 of 10 sequences at a time; the others wait"),
        ([engine(11, 2)], "DOES NOT FIT, by 1 GiB: weights and one sequence need 13 GiB of the 12 GiB"),
        ([trainer(9), engine(2, 0.5), trainer(30)], "DOES NOT FIT, by 6 GiB"),
    ],
)
def test_the_verdict_on_a_gpu_of_its_own(found: list[Place], wanted: str) -> None:
    assert wanted in "\n".join(verdicts(found, CARD))


def test_the_verdict_on_a_gpu_that_trainer_and_engine_share() -> None:
    beside = replace(engine(2, 0.5), shared=True)
    (fits,) = verdicts([trainer(10, shared=True), beside], CARD)
    assert "fits, with all 10 sequences at a time, 2 GiB left over" in fits
    (turns,) = verdicts([trainer(10, shared=True), trainer(8, shared=True), beside], CARD)
    assert turns == fits
    (too_much,) = verdicts([trainer(14, shared=True), beside], CARD)
    assert "DOES NOT FIT, by 2 GiB" in too_much
    assert "give gpu_memory_utilization below 0.42" in too_much
    (hopeless,) = verdicts([trainer(23, shared=True), beside], CARD)
    assert "take smaller micro-batches" in hopeless


def test_gpus_that_are_missing_are_counted() -> None:
    found = [trainer(1), engine(1, 0.1), Place("reward", 2, 1, {"weights": 1})]
    assert "4 GPUs are asked for, and this machine shows 2: TOO FEW" in list(verdicts(found, CARD))[-1]
    assert not [line for line in verdicts(found, Cards(GIB * 24, "x")) if "TOO FEW" in line]


def test_gpus_are_read_from_the_machine_or_given() -> None:
    assert cards_in([]) is None
    lines = ["NVIDIA A10G, 24564 MiB, 570.1", "NVIDIA T4, 15360 MiB, 570.1"]
    assert cards_in(lines) == Cards(15360 << 20, lines[1], 2)
    assert given_cards("80GB").bytes == given_cards("80 GiB").bytes == 80 * GIB
    with pytest.raises(RecipeError, match="like 24GB"):
        given_cards("much")
    tiny = said(shipped("quickstart"), "24GB")
    assert "which they share (24 GiB): fits" in tiny["fits"]
    assert "on the CPU" not in tiny["memory"]


def test_a_start_says_what_it_would_take_up(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recipe = shipped("gsm8k_preferences", f"run_dir={folder}", f"buffer.uri={tmp_path}/buffer")
    assert isinstance(recipe, RunRecipe)
    assert "this would be its first start" in folder_line(recipe)
    (folder / "stages").mkdir(parents=True)
    (folder / RECIPE_FILE).write_text(json.dumps(recipe.saved()))
    record = RunRecord(1, "here", 0, 0.0, RunState.STOPPED, 0.0)
    write_record(folder, record, durable=False)
    assert folder_line(recipe).endswith("(stopped); a start goes on with stage 0-sft, from its beginning")
    (folder / "progress.json").write_text(json.dumps({"done": ["start", "0-sft"]}))
    checkpoint = folder / "stages" / "1-dpo.checkpoints" / "checkpoint-40"
    checkpoint.mkdir(parents=True)
    (checkpoint / MANIFEST_FILE).write_text("{}")
    assert folder_line(recipe).endswith("with stage 1-dpo, from its checkpoint of step 40")
    write_record(folder, replace(record, state=RunState.FINISHED), durable=False)
    assert "shows its summary" in folder_line(recipe)
    other = shipped("gsm8k_preferences", f"run_dir={folder}", f"buffer.uri={tmp_path}/buffer", "seed=7")
    assert isinstance(other, RunRecipe)
    assert "cannot continue (seed: 0 -> 7): give another 'name'" in folder_line(other)
