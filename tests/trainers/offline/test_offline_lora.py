"""LoRA in offline stages: stock TRL's update, a base that stays, its reference, whole weights afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import set_seed
from trl import (
    DPOConfig,
    DPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)

from rft_data.core.codec import to_table
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Experience
from rft_data.core.schema import EXPERIENCES
from tests.trainers.stock import STOCK, require_same_update
from trainers.models.adapters import adapter_config
from trainers.models.weights import load_model, load_tokenizer
from trainers.offline.answers import Answer, AnswerPair, rendered_answer
from trainers.offline.dpo import dpo_config, dpo_trainer, train_dpo
from trainers.offline.kto import kto_config, kto_trainer, train_kto
from trainers.offline.offline_fit import fit, save
from trainers.offline.offline_stage import check_stage
from trainers.offline.reward_model import load_scorer, reward_config, reward_trainer, train_reward_model
from trainers.offline.sft import sft_config, sft_dataset, sft_trainer, train_sft

peft = pytest.importorskip("peft")

LORA = {"r": 4, "lora_alpha": 16, "target_modules": "all-linear", "lora_dropout": 0.0}
ALGORITHMS = ["sft", "dpo", "kto", "reward_model"]
TEXTS = [
    ("2+3=", "The sum is 5.", "6"),
    ("Name a tree.", "Oak, or elm.", "blue"),
    ("x+4=9, x?", "5", "x is 13"),
]
OPTIONS = {"learning_rate": 0.1, "max_steps": 2, "optim": "sgd"}


def message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def pairs_of(path: Path) -> list[AnswerPair]:
    tokenizer = load_tokenizer(path)
    return [
        tuple(
            rendered_answer(tokenizer, [message("user", p), message("assistant", a)], 1)
            for a in (better, worse)
        )
        for p, better, worse in TEXTS
    ]


def answers_of(path: Path) -> tuple[list[Answer], list[bool]]:
    """Every answer of every pair, and whether it is the better."""
    return [answer for pair in pairs_of(path) for answer in pair], [True, False] * len(TEXTS)


def table_of(texts: list[tuple[str, str, str]] = TEXTS) -> Any:
    rows = [
        Experience(
            f"e{i}", "expert", "r", "t", "t", "g", messages=(message("user", p), message("assistant", a))
        )
        for i, (p, a, _) in enumerate(texts)
    ]
    return to_table(rows, EXPERIENCES)


def scorer(path: Path) -> Any:
    set_seed(5)
    return load_scorer(path)


def ours(algorithm: str, path: Path, folder: Path, lora: Mapping[str, Any] = LORA, **extra: Any) -> Any:
    """Our trainer, ready to train on all of TEXTS in one batch."""
    tokenizer = load_tokenizer(path)
    size = 6 if algorithm == "kto" else 3
    options = {**OPTIONS, "per_device_train_batch_size": size, **extra}
    adapter = adapter_config(lora, "SEQ_CLS" if algorithm == "reward_model" else "CAUSAL_LM")
    if algorithm == "sft":
        config = sft_config(folder, options=options, seed=0)
        return sft_trainer(load_model(path), config, sft_dataset(table_of(), tokenizer), tokenizer, adapter)
    if algorithm == "dpo":
        config = dpo_config(folder, options=options, seed=0)
        return dpo_trainer(load_model(path), None, config, pairs_of(path), tokenizer, adapter)
    if algorithm == "kto":
        config = kto_config(folder, options=options, seed=0)
        return kto_trainer(load_model(path), None, config, *answers_of(path), tokenizer, adapter)
    config = reward_config(folder, options=options, seed=0)
    return reward_trainer(scorer(path), config, pairs_of(path), tokenizer, adapter)


def stock(algorithm: str, path: Path, folder: Path) -> Any:
    """TRL's own, on the same conversations as text, with its `peft_config`."""
    trainer, config = {
        "sft": (SFTTrainer, SFTConfig),
        "dpo": (DPOTrainer, DPOConfig),
        "kto": (KTOTrainer, KTOConfig),
        "reward_model": (RewardTrainer, RewardConfig),
    }[algorithm]
    prompts = [[message("user", prompt)] for prompt, _, _ in TEXTS]
    both = [([message("assistant", better)], [message("assistant", worse)]) for _, better, worse in TEXTS]
    rows: list[dict[str, Any]] = [
        {"prompt": p, "chosen": b, "rejected": w} for p, (b, w) in zip(prompts, both, strict=True)
    ]
    if algorithm == "sft":
        rows = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in rows]
    if algorithm == "kto":
        rows = [
            {"prompt": row["prompt"], "completion": row[half], "label": half == "chosen"}
            for row in rows
            for half in ("chosen", "rejected")
        ]
    return trainer(
        model=scorer(path) if algorithm == "reward_model" else load_model(path),
        args=config(str(folder), per_device_train_batch_size=len(rows), **STOCK, **OPTIONS),
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer(path),
        peft_config=peft.LoraConfig(
            **LORA, task_type="SEQ_CLS" if algorithm == "reward_model" else "CAUSAL_LM"
        ),
    )


def is_trained(name: str) -> bool:
    return ".lora_" in name or ".modules_to_save." in name


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_first_updates_equal_stock_trls_and_the_base_stays(
    model_path: Path, tmp_path: Path, algorithm: str
) -> None:
    trainer = ours(algorithm, model_path, tmp_path / "ours")
    theirs = stock(algorithm, model_path, tmp_path / "stock")
    start = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    require_same_update(trainer, theirs, start, least=1e-5)
    after = trainer.model.state_dict()
    assert all(torch.equal(after[name], start[name]) for name in start if not is_trained(name))
    moved = {name for name in start if not torch.equal(after[name], start[name])}
    assert {name for name in start if ".lora_" in name} <= moved
    assert any("score.modules_to_save" in name for name in moved) == (algorithm == "reward_model")


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"use_rslora": True, "rank_pattern": {"q_proj": 8}, "alpha_pattern": {"v_proj": 3}},
        {"init_lora_weights": "gaussian", "lora_dropout": 0.3},
        {"init_lora_weights": "orthogonal"},
    ],
    ids=["plain", "patterns", "gaussian", "orthogonal"],
)
def test_written_model_is_whole_and_says_what_the_adapted_one_says(
    model_path: Path, tmp_path: Path, extra: dict[str, Any]
) -> None:
    trainer = ours("sft", model_path, tmp_path / "run", {**LORA, **extra}, learning_rate=0.5)
    ids = torch.tensor([[7, 8, 20, 30, 9, 11, 40, 41]])
    first, base = load_model(model_path)(ids).logits, load_file(model_path / "model.safetensors")
    trainer.model.eval()
    assert torch.allclose(trainer.model(input_ids=ids).logits, first, atol=1e-5)
    fit(trainer)
    save(trainer, load_tokenizer(model_path), model_path, tmp_path / "out")
    trainer.model.eval()
    want = trainer.model(input_ids=ids).logits.log_softmax(-1)
    got = load_model(tmp_path / "out")(ids).logits.log_softmax(-1)
    assert torch.allclose(got, want, rtol=0, atol=1e-5)
    assert not torch.allclose(want, first.log_softmax(-1), rtol=0, atol=1e-3)
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors", "probe"} <= written
    assert not any("adapter" in name for name in written)
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == base.keys()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]


@pytest.mark.slow
def test_reward_models_head_is_trained_and_written(model_path: Path, tmp_path: Path) -> None:
    made, tokenizer = pairs_of(model_path), load_tokenizer(model_path)
    options = {**OPTIONS, "max_steps": 12, "per_device_train_batch_size": 3}
    fitted = train_reward_model(model_path, made, tmp_path / "out", options=options, seed=5, lora=LORA)
    assert fitted.metrics["loss_last"] < 0.5 * fitted.metrics["loss_first"]
    config = reward_config(tmp_path, options=options, seed=5)
    trainer = reward_trainer(scorer(model_path), config, made, tokenizer, adapter_config(LORA, "SEQ_CLS"))
    fit(trainer)
    ids, written = torch.tensor([[7, 8, 20, 30, 9, 11]]), load_scorer(tmp_path / "out")
    assert torch.allclose(written(ids).logits, trainer.model.eval()(input_ids=ids).logits, atol=1e-5)
    assert (written.score.weight - scorer(model_path).score.weight).abs().max().item() > 1e-3
    assert torch.equal(written.model.embed_tokens.weight, scorer(model_path).model.embed_tokens.weight)
    assert not list((tmp_path / "out").glob("adapter*"))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_reference_is_the_start_model_also_where_its_logprobs_come_first(
    model_path: Path, tmp_path: Path, algorithm: str
) -> None:
    options = {"max_steps": 4, "learning_rate": 0.5}
    beside = ours(algorithm, model_path, tmp_path / "a", **options)
    before = ours(algorithm, model_path, tmp_path / "b", precompute_ref_log_probs=True, **options)
    tokenizer, start = load_tokenizer(model_path), load_model(model_path)
    model, adapter, arguments = load_model(model_path), adapter_config(LORA), before.args
    arguments.precompute_ref_log_probs = False
    whole = (
        dpo_trainer(model, start, arguments, pairs_of(model_path), tokenizer, adapter)
        if algorithm == "dpo"
        else kto_trainer(model, start, arguments, *answers_of(model_path), tokenizer, adapter)
    )
    losses = [[point["loss"] for point in fit(t).history] for t in (beside, before, whole)]
    assert losses[0][0] == pytest.approx(0.693147 if algorithm == "dpo" else 0.5, abs=1e-5)
    assert losses[0][3] < losses[0][0] - 0.01
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trained_twice_is_the_same_model(model_path: Path, tmp_path: Path, algorithm: str) -> None:
    size = {"per_device_train_batch_size": 2, "max_steps": 2, "learning_rate": 1e-2}
    lora = {**LORA, "lora_dropout": 0.2}
    for name in ("a", "b"):
        torch.manual_seed(len(name) + ord(name))  # what ran before does not matter
        how: dict[str, Any] = {"options": size, "seed": 3, "lora": lora}
        if algorithm == "sft":
            train_sft(model_path, table_of(), tmp_path / name, **how)
        elif algorithm == "kto":
            train_kto(model_path, *answers_of(model_path), tmp_path / name, **how)
        else:
            train = train_dpo if algorithm == "dpo" else train_reward_model
            train(model_path, pairs_of(model_path), tmp_path / name, **how)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("a", "b"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_gradient_checkpointing_trains_the_same_adapter(model_path: Path, tmp_path: Path) -> None:
    plain = ours("sft", model_path, tmp_path / "a")
    saving = ours("sft", model_path, tmp_path / "b", gradient_checkpointing=True)
    require_same_update(saving, plain, dict(load_adapter(plain)), least=1e-5)


def load_adapter(trainer: Any) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in trainer.model.state_dict().items() if is_trained(n)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"rank": 4}, "lora: 'rank' is not an option of PEFT's LoraConfig"),
        ({"modules_to_save": ["score"]}, "'modules_to_save' cannot be set here: published weights"),
        ({"lora_bias": True}, "'lora_bias' cannot be set here: published weights"),
        (
            {"init_lora_weights": "pissa"},
            "'init_lora_weights' is 'pissa', and the model must be the start model",
        ),
        ({"bias": "all"}, "'bias' is 'all', .*: give none"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_be_merged_are_refused_before_any_work(
    tmp_path: Path, algorithm: str, bad: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        check_stage(algorithm, tmp_path, options={}, seed=0, lora={**LORA, **bad})
    check_stage(algorithm, tmp_path, options={}, seed=0, lora=LORA)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "target", "message"),
    [
        ("dpo", "lm_head", "DPOTrainer refuses its options: .*`lm_head` is not supported.* 'trl' or 'lora'"),
        ("sft", "k_porj", "SFTTrainer refuses its options: Target modules .*k_porj"),
        ("sft", "embed_tokens", "is a Embedding; only linear layers can be merged"),
    ],
)
def test_layers_without_a_mergeable_adapter_are_refused_before_the_first_step(
    model_path: Path, tmp_path: Path, algorithm: str, target: str, message: str
) -> None:
    lora = {**LORA, "target_modules": [target]}
    train, given = (train_sft, table_of()) if algorithm == "sft" else (train_dpo, pairs_of(model_path))
    with pytest.raises(RecipeError, match=message):
        train(model_path, given, tmp_path / "out", options=OPTIONS, seed=0, lora=lora)
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.slow
def test_reference_that_follows_the_policy_is_refused_with_an_adapter(
    model_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match="You passed `sync_ref_model=True` while using a PEFT model"):
        ours("dpo", model_path, tmp_path, sync_ref_model=True)
