"""DPO: every loss against float64, the first update against stock TRL, masks, the reference."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

from rft_data.core.errors import RecipeError
from rft_data.core.rows import PreferencePair
from tests.trainers.offline import preference_reference as reference
from tests.trainers.stock import STOCK, require_same_update
from trainers.models.loss_types import DPO_LOSSES
from trainers.models.tiny_model import build_tiny_model
from trainers.models.weights import load_model, load_tokenizer
from trainers.offline.answers import Answer, AnswerPair, answer_pair
from trainers.offline.dpo import dpo_config, dpo_trainer, train_dpo

BETA, EPS, TAU = 0.3, 0.1, 0.05


@pytest.fixture(scope="session")
def other_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference that is not the policy."""
    folder = tmp_path_factory.mktemp("other") / "model"
    return build_tiny_model(folder, seed=4, hidden_size=64, num_layers=2, num_heads=2, intermediate_size=128)


def trainer_of(model: Path, ref: Path | None, made: list[AnswerPair], folder: Path, **options: Any) -> Any:
    config = dpo_config(folder, options={"per_device_train_batch_size": len(made), **options}, seed=0)
    loaded = None if ref is None else load_model(ref)
    return dpo_trainer(load_model(model), loaded, config, made, load_tokenizer(model))


def loss_of(trainer: Any) -> torch.Tensor:
    batch = next(iter(trainer.get_train_dataloader()))
    return trainer.compute_loss(trainer.model, batch)


@pytest.mark.slow
def test_every_loss_equals_its_papers_float64_value(
    model_path: Path, other_path: Path, tmp_path: Path
) -> None:
    made = reference.pairs(1, 5)
    policy, ref = reference.exact(model_path), reference.exact(other_path)
    with torch.no_grad():
        sums = [
            [float(reference.logprob(model, pair[half])) for pair in made]
            for model in (policy, ref)
            for half in (0, 1)
        ]
    lengths = [(sum(better.mask), sum(worse.mask)) for better, worse in made]
    wanted = reference.dpo_losses(*sums, lengths, beta=BETA, eps=EPS, tau=TAU)
    assert set(wanted) == set(DPO_LOSSES)
    options = {"beta": BETA, "label_smoothing": EPS, "discopop_tau": TAU}
    trainer = trainer_of(model_path, other_path, made, tmp_path, **options)
    found = {}
    for name in DPO_LOSSES:
        trainer.loss_types = [name]
        found[name] = loss_of(trainer).item()
    assert found == pytest.approx(wanted, rel=2e-5)
    trainer.loss_types, trainer.loss_weights = ["sigmoid", "sft"], [0.8, 0.2]
    mixture = 0.8 * wanted["sigmoid"] + 0.2 * wanted["sft"]
    assert loss_of(trainer).item() == pytest.approx(mixture, rel=2e-5)


@pytest.mark.slow
def test_gradient_is_that_of_the_assistants_tokens_alone(
    model_path: Path, other_path: Path, tmp_path: Path
) -> None:
    made = reference.pairs(2, 4)
    assert any(0 in better.mask[better.prompt_length :] for better, _ in made)
    trainer = trainer_of(model_path, other_path, made, tmp_path, beta=BETA)
    loss_of(trainer).backward()
    policy, ref = reference.exact(model_path), reference.exact(other_path)
    total = torch.zeros((), dtype=torch.float64)
    for better, worse in made:
        with torch.no_grad():
            gap = reference.logprob(ref, better) - reference.logprob(ref, worse)
        margin = reference.logprob(policy, better) - reference.logprob(policy, worse) - gap
        total = total - torch.nn.functional.logsigmoid(BETA * margin) / len(made)
    total.backward()
    found, wanted = reference.gradients(trainer.model), reference.gradients(policy)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


TEXTS = [
    ("2+3=", "The sum is 5.", "The sum is 6."),
    ("Name a colour.", "Blue, which is the colour of the sky.", "Seven"),
    ("x + 4 = 9, x?", "5", "x is 13 since 9 + 4 = 13"),
]


@pytest.mark.slow
def test_first_update_equals_stock_trl_on_the_same_conversations(
    model_path: Path, other_path: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(model_path)
    rows = [
        {
            "prompt": [{"role": "user", "content": prompt}],
            "chosen": [{"role": "assistant", "content": better}],
            "rejected": [{"role": "assistant", "content": worse}],
        }
        for prompt, better, worse in TEXTS
    ]
    stored = [
        PreferencePair("human", "t", "t", row["chosen"], row["rejected"], messages=row["prompt"])
        for row in rows
    ]
    made = [answer_pair(tokenizer, pair, {}) for pair in stored]
    options = {"learning_rate": 1e-2, "max_steps": 1, "loss_type": ["sigmoid", "sft"], "optim": "sgd"}
    ours = trainer_of(model_path, other_path, made, tmp_path, **options)
    stock = DPOTrainer(
        model=load_model(model_path),
        ref_model=load_model(other_path),
        args=DPOConfig(
            str(tmp_path / "stock"),
            per_device_train_batch_size=3,
            **STOCK,
            **options,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer(model_path),
    )
    start = load_model(model_path).state_dict()
    require_same_update(ours, stock, start, least=1e-5)


@pytest.mark.slow
def test_reference_is_the_stages_start_wherever_its_folder_came_from(
    model_path: Path, other_path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(other_path, folder)  # its files' own idea of a path is no help
    made = reference.pairs(3, 4)
    options = {"max_steps": 2, "learning_rate": 1e-3, "beta": BETA}
    kept = train_dpo(folder, made, tmp_path / "a", options=options, seed=0)
    before = train_dpo(
        folder, made, tmp_path / "b", options={**options, "precompute_ref_log_probs": True}, seed=0
    )
    assert kept.metrics["loss_first"] == pytest.approx(0.693147, abs=1e-5)
    assert [p["loss"] for p in before.history] == pytest.approx([p["loss"] for p in kept.history], rel=1e-5)
    assert kept.metrics["loss_last"] < kept.metrics["loss_first"]
    assert {"rewards/accuracies", "rewards/margins", "step"} <= set(kept.history[0])
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "a").get_input_embeddings().weight
    start = AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight
    assert not torch.equal(trained, start)
    assert (tmp_path / "a" / "probe").is_dir()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_type": "sigmoyd"}, "did you mean 'sigmoid'"),
        ({"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0]}, "must have the same length"),
        ({"loss_type": "exo_pair"}, "needs 'trl.label_smoothing' above 0"),
        ({"bta": 0.1}, "'bta' is not an option of TRL's DPOConfig; did you mean 'beta'"),
        ({"truncation_mode": "keep_end"}, "'truncation_mode' cannot be set here: pairs that are too long"),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        dpo_config(tmp_path, options=options, seed=0)


@pytest.mark.slow
def test_what_trl_refuses_together_names_the_stage(model_path: Path, tmp_path: Path) -> None:
    options = {"max_steps": 1, "precompute_ref_log_probs": True, "sync_ref_model": True}
    with pytest.raises(RecipeError, match="DPOTrainer refuses its options: You cannot use"):
        train_dpo(model_path, reference.pairs(5, 2), tmp_path, options=options, seed=0)


def test_pair_of_equal_tokens_or_without_a_counted_token_is_refused(model_path: Path) -> None:
    tokenizer = load_tokenizer(model_path)
    message = {"role": "user", "content": "a"}
    pair = PreferencePair(
        "mined", "t", "t", [message], [message], chosen_experience_id="x", rejected_experience_id="y"
    )
    same, silent = Answer([1, 2], [0, 1], 1), Answer([1, 3], [0, 0], 2)
    with pytest.raises(ValueError, match="both answers are the same tokens"):
        answer_pair(tokenizer, pair, {"x": same, "y": same})
    with pytest.raises(ValueError, match="no token that the assistant wrote"):
        answer_pair(tokenizer, pair, {"x": same, "y": silent})


@pytest.mark.slow
def test_tokenizer_without_a_pad_token_will_do(model_path: Path, other_path: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(model_path)
    made = [
        answer_pair(tokenizer, PreferencePair("human", "t", "t", [better], [worse], messages=prompt), {})
        for prompt, better, worse in (
            ([{"role": "user", "content": p}], answer(b), answer(w)) for p, b, w in TEXTS
        )
    ]
    tokenizer.pad_token = None
    config = dpo_config(tmp_path, options={"max_steps": 1}, seed=0)
    trainer = dpo_trainer(load_model(model_path), load_model(other_path), config, made, tokenizer)
    trainer.train()
    assert trainer.state.global_step == 1


def answer(text: str) -> dict[str, str]:
    """The assistant's."""
    return {"role": "assistant", "content": text}
