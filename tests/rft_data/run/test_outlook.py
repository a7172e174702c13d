from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2ForCausalLM

from rft_data.core.errors import IntegrityError
from rft_data.recipe.load import load_recipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.sections import TinyModel
from rft_data.run.outlook.batches import micro_batch
from rft_data.run.outlook.contacts import contacts
from rft_data.run.outlook.lines import outlook_lines
from rft_data.run.outlook.memory import Batch, Training, cache_bytes_a_token, training_memory
from rft_data.run.outlook.model_size import _tiny, folder_size
from rft_data.run.outlook.places import engine_places, trainer_place
from trainers.models.tiny_model import build_tiny_model

RECIPES = Path(__file__).parents[3] / "recipes"
ON_CPU = Training(options={}, lora=None, reference=False, critic=False, on_gpu=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(
        tmp_path_factory.mktemp("size") / "model",
        seed=0,
        hidden_size=128,
        num_layers=3,
        intermediate_size=384,
    )


HUGE = ("explorer.engine.max_model_len=100000000", "model.build.max_position_embeddings=100000000")


def kept_bytes(model: Qwen2ForCausalLM, rows: int, tokens: int) -> int:
    """What the layers of a model keep for their backward pass, as torch says."""
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.model(torch.zeros(rows, tokens, dtype=torch.int64), use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.slow
def test_a_folder_is_sized_up_without_loading_it(folder: Path) -> None:
    found, model = folder_size(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert found is not None
    assert found.parameters == model.num_parameters()
    assert found.context == model.config.max_position_embeddings
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    trained = sum(one.numel() for one in adapted.parameters() if one.requires_grad)
    assert found.adapter_parameters({"r": 4, "target_modules": "all-linear"}) == trained
    one = found.adapter_parameters({"r": 4, "target_modules": ["down_proj"]})
    assert one == 3 * 4 * (128 + 384)
    tiny = _tiny(TinyModel(use="tiny_qwen2", hidden_size=128, num_layers=3, intermediate_size=384))
    assert 0 <= tiny.parameters - found.parameters < 1024 * 128


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_what_torch_keeps(folder: Path, checkpointing: bool) -> None:
    size, model = folder_size(folder), AutoModelForCausalLM.from_pretrained(folder).train()
    assert size is not None
    if checkpointing:
        model.gradient_checkpointing_enable()
    how = Training({"gradient_checkpointing": checkpointing}, None, False, False, on_gpu=False)
    found = training_memory(size, how, Batch(rows=4, tokens=50, completion=20))["activations"]
    measured = kept_bytes(model, 4, 50)
    if checkpointing:  # and one layer as a whole, while its backward pass runs
        measured += kept_bytes(AutoModelForCausalLM.from_pretrained(folder).train(), 4, 50) // size.layers
    assert found == pytest.approx(measured, rel=0.05)


def test_memory_of_training_by_what_it_is_for(folder: Path) -> None:
    size, batch = folder_size(folder), Batch(rows=2, tokens=10, completion=4)
    assert size is not None
    whole = training_memory(size, ON_CPU, batch)
    assert whole["weights"] == whole["gradients"] == 4 * size.parameters
    assert whole["optimizer"] == 8 * size.parameters
    lora = Training({}, {"r": 4, "target_modules": ["down_proj"]}, reference=True, critic=False, on_gpu=False)
    adapted = training_memory(size, lora, batch)
    assert adapted["optimizer"] == 2 * adapted["gradients"] == 8 * 3 * 4 * (128 + 384)
    assert "reference" not in adapted  # it is the model without its adapter
    options = {"model_init_kwargs": {"dtype": "bfloat16"}, "optim": "adamw_8bit"}
    on_gpu = training_memory(size, Training(options, None, True, True, on_gpu=True), batch)
    assert on_gpu["weights"] == 2 * 2 * size.parameters  # policy and critic
    assert on_gpu["optimizer"] == 2 * 2 * size.parameters
    assert on_gpu["reference"] == 2 * size.parameters
    assert on_gpu["logits and their gradient"] == 2 * 4 * size.vocabulary * 2 * 4
    config = AutoConfig.from_pretrained(folder)
    assert cache_bytes_a_token(size, "float32") == 2 * config.num_hidden_layers * 128 * 4


def test_a_damaged_model_is_one_clear_error(tmp_path: Path) -> None:
    assert folder_size(tmp_path) is None
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0no json.")
    with pytest.raises(IntegrityError, match="cannot be sized up"):
        folder_size(tmp_path)


def online(*overrides: str) -> OnlineRecipe:
    recipe = load_recipe(RECIPES / "quickstart.yaml", overrides)
    assert isinstance(recipe, OnlineRecipe)
    return recipe


def test_the_arithmetic_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # who tried the quickstart has its run in the checkout
    recipe = online("stages.1.trl.gradient_accumulation_steps=4")
    assert micro_batch(recipe) == Batch(rows=32, tokens=128, completion=48)
    text = "\n".join(outlook_lines(recipe))
    assert "16 groups x 8 rollouts = 128 rollouts; 40 steps = 5,120 rollouts" in text
    assert "1 process x 4 micro-batches of 32 rows of at most 128 tokens" in text
    assert "none: every trained token was sampled by the weights" in text
    assert "contacts     no host" in text
    assert "holds no run" in text


def test_the_arithmetic_of_several_processes() -> None:
    recipe = online(
        "placement={use: local, trainer: {processes: 3, cpus: 3, shard: fsdp2}}",
        "stages.1.trl.gradient_accumulation_steps=4",
    )
    assert micro_batch(recipe) == Batch(rows=12, tokens=128, completion=48)
    text = "\n".join(outlook_lines(recipe))
    assert (
        "3 processes x 4 micro-batches of 12 rows of at most 128 tokens = 144 rows a step, 16 of them" in text
    )
    assert "at most 1,536 tokens at a time in a process, gradients of 4 micro-batches added up" in text


@pytest.mark.slow
def test_memory_of_a_process_that_keeps_a_part(folder: Path) -> None:
    size, batch = folder_size(folder), Batch(rows=2, tokens=10, completion=4)
    assert size is not None
    model = AutoModelForCausalLM.from_pretrained(folder)
    one_layer = sum(weight.numel() for weight in model.model.layers[0].parameters())
    assert size.gathered_parameters == size.parameters - 2 * one_layer
    alone = training_memory(size, ON_CPU, batch)
    several = training_memory(size, replace(ON_CPU, processes=4), batch)
    assert several["weights"] == alone["weights"]
    assert several["gradients on their way to the other processes"] == alone["gradients"]
    split = training_memory(size, replace(ON_CPU, processes=4, shard=True), batch)
    assert {name: 4 * split[name] for name in ("weights", "gradients", "optimizer")} == {
        name: alone[name] for name in ("weights", "gradients", "optimizer")
    }
    assert split["activations"] == alone["activations"]
    assert split["what is gathered at a time"] == 2 * 4 * size.gathered_parameters


def test_engines_and_trainer_share_the_machine_by_placement() -> None:
    recipe = online(
        "placement.use=local",
        "placement.explorers.count=2",
        "placement.explorers.gpus=1",
        "sync.max_staleness=1",
    )
    size = _tiny(recipe.model.build)  # type: ignore[arg-type]
    trainer = trainer_place(recipe, size, shared_gpu=False)
    (engine,) = engine_places(recipe, size, folder_size, 256, shared_gpu=False)
    assert (trainer.count, trainer.gpus, engine.count, engine.gpus) == (1, 0, 2, 1)
    assert "cache of 128 sequences of 128 tokens" in engine.parts  # 2 x 16 groups of 8, over two explorers
    text = "\n".join(outlook_lines(recipe))
    assert "engine 'vllm', each of 2" in text
    assert "more than 1 step behind is not trained on" in text
    assert "2 explorers with 1 CPU, 1 GPU each" in text


def rewards(folder: Path, **devices: str) -> str:
    """Reward models of one folder, by name, on these devices."""
    given = [
        {"use": "reward_model", "name": name, "args": {"model": str(folder), "device": device}}
        for name, device in devices.items()
    ]
    return f"explorer.reward={json.dumps(given)}"


def test_reward_models_are_counted_on_their_devices(folder: Path) -> None:
    recipe = online(
        "placement={use: local, explorers: {count: 2, gpus: 3}, trainer: {gpus: 1}}",
        rewards(folder, beside="cuda:0", own="cuda:1", small="cuda:2", other="cuda:2", slow="cpu"),
    )
    size = folder_size(folder)
    assert size is not None
    trainer = trainer_place(recipe, size, shared_gpu=False)
    engine, *found = engine_places(recipe, size, folder_size, 128, shared_gpu=False)
    assert engine.parts["reward 'beside'"] == 4 * size.parameters
    assert [(one.name, one.gpus, one.count, one.total) for one in found] == [
        ("reward 'own'", 1, 2, 4 * size.parameters),
        ("rewards 'small', 'other'", 1, 2, 8 * size.parameters),
        ("reward 'slow'", 0, 2, 4 * size.parameters),
    ]
    assert list(found[1].parts) == ["weights of 'small'", "weights of 'other'"]
    assert sum(one.gpus * one.count for one in (trainer, engine, *found)) == 2 * 3 + 1, "no GPU twice"
    assert "on GPUs: 7 of them" in "\n".join(outlook_lines(recipe))


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA A10G, 24564 MiB, 570.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.slow
@pytest.mark.usefixtures("card")
def test_what_shares_the_gpu_of_one_process_is_what_is_on_it(folder: Path) -> None:
    def shared(**devices: str) -> str:
        lines = outlook_lines(online(*[rewards(folder, **devices)] if devices else []))
        return next(line for line in lines if "which they share" in line)

    alone = shared()
    assert shared(slow="cpu") == shared(own="cuda:1") == alone
    assert shared(beside="cuda") != alone


@pytest.mark.usefixtures("card")
def test_one_process_on_a_machine_with_a_gpu_uses_the_gpu() -> None:
    text = "\n".join(outlook_lines(online(*HUGE)))
    assert "on the GPU, which they share (NVIDIA A10G" in text
    assert "NVIDIA A10G, 24564 MiB" in text
    assert "of 1 GPU (weights" in text
    assert "on the CPU" not in text
    assert "DOES NOT FIT, by " in text


def test_trainer_and_engine_that_take_turns_each_have_the_whole_gpu() -> None:
    places = "placement={use: local, colocate: true, explorers: {gpus: 1}, trainer: {gpus: 1}}"
    text = "\n".join(outlook_lines(online(places), "24GB"))
    assert "trainer, on a GPU (24 GiB): fits, 23" in text
    assert "on the GPU, which they share (24 GiB): fits, with all 128 sequences" in text
    assert "on GPUs: 1 of them" in "\n".join(outlook_lines(online(places)))


def test_training_on_stored_groups_has_no_engine(tmp_path: Path) -> None:
    stage = "{algorithm: grpo, steps: 5, groups_per_step: 4, trl: {gradient_accumulation_steps: 2}}"
    path = tmp_path / "train.yaml"
    path.write_text(f"""recipe: 1
name: learning
mode: train
explored_by: looking
group_size: 6
run_dir: runs/learning
buffer: {{uri: b}}
model: {{build: {{use: tiny_qwen2}}}}
experience_ops: []
stages: [{stage}]
""")
    text = "\n".join(outlook_lines(load_recipe(path)))
    assert "4 groups x 6 rollouts = 24 rollouts" in text
    assert "1 process x 2 micro-batches of 12 rows" in text
    assert "sampled before this run" in text
    assert "trainer: about" in text
    assert "engine" not in text


def test_what_does_not_fit_is_said_and_no_model_is_guessed(tmp_path: Path) -> None:
    huge = "\n".join(outlook_lines(online(*HUGE)))
    assert "DOES NOT FIT" in huge
    missing = "\n".join(outlook_lines(online("model={path: nobody/model}")))
    assert "not in the hub's cache" in missing
    assert "hf download nobody/model config.json" in missing
    assert "huggingface.co" in missing
    earlier = "\n".join(outlook_lines(online("model={path: runs/a/final}")))
    assert "once an earlier run has written it" in earlier
    assert "no host" in earlier


def test_hosts_are_named_and_secrets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    args: dict[str, Any] = {"url": "https://user:secret@scores.example.org:8443/v1"}
    recipe = online(
        f"explorer.reward=[{{use: reward_server, args: {json.dumps(args)}}}]",
        "monitor.trackers=[wandb, clearml, mlflow, tensorboard]",
        "buffer.uri=s3://rollouts/run",
    )
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("CLEARML_API_HOST", raising=False)
    found = contacts(recipe)
    assert set(found) == {"scores.example.org:8443", "wandb.example.org", "api.clear.ml", "s3://rollouts"}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:secret@mlflow.example.org/x")
    assert set(contacts(recipe)) - set(found) == {"mlflow.example.org"}
    assert found["scores.example.org:8443"] == "explorer.reward.0.args.url"
    hub = "tasks.0.source={use: huggingface, path: openai/gsm8k}"
    assert "'openai/gsm8k'" in contacts(online(hub))["huggingface.co"]
    imported = contacts(online("imports=[{path: 'hf://openai/gsm8k/main:train'}]"))
    assert list(imported) == ["huggingface.co"]
