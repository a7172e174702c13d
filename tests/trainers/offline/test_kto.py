"""KTO: float64, the first update against stock TRL, masks, the rotation of the KL term."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import KTOConfig, KTOTrainer

from rft_data.core.errors import RecipeError, TrainingError
from tests.trainers.offline import preference_reference as reference
from tests.trainers.stock import STOCK, require_same_update
from trainers.models.tiny_model import build_tiny_model
from trainers.models.weights import load_model, load_tokenizer
from trainers.offline.answers import Answer, rendered_answer
from trainers.offline.kto import kto_config, kto_trainer, train_kto

BETA = 0.3
LABELS = [True, False, False, True, False]


@pytest.fixture(scope="session")
def other_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference that is not the policy."""
    folder = tmp_path_factory.mktemp("other") / "model"
    return build_tiny_model(folder, seed=4, hidden_size=64, num_layers=2, num_heads=2, intermediate_size=128)


def trainer_of(
    model: Path, ref: Path | None, made: list[Answer], labels: list[bool], folder: Path, **options: Any
) -> Any:
    config = kto_config(folder, options={"per_device_train_batch_size": len(made), **options}, seed=0)
    loaded = None if ref is None else load_model(ref)
    return kto_trainer(load_model(model), loaded, config, made, labels, load_tokenizer(model))


def mismatched(made: list[Answer]) -> list[Answer]:
    """Each prompt with the answer of the row before it."""
    turned = [made[-1], *made[:-1]]
    return [
        Answer(
            [*own.ids[: own.prompt_length], *other.ids[other.prompt_length :]],
            [*[0] * own.prompt_length, *other.mask[other.prompt_length :]],
            own.prompt_length,
        )
        for own, other in zip(made, turned, strict=True)
    ]


@pytest.mark.slow
def test_loss_and_gradient_equal_the_papers_in_float64(
    model_path: Path, other_path: Path, tmp_path: Path
) -> None:
    made = reference.answers(7, 5)
    options = {"beta": BETA, "desirable_weight": 1.5, "undesirable_weight": 0.7}
    # the KL term must count, so that the test sees it: it is of the policy against the reference
    for model, ref in ((model_path, other_path), (other_path, model_path)):
        trainer = trainer_of(model, ref, made, LABELS, tmp_path, **options)
        loss = trainer.compute_loss(trainer.model, next(iter(trainer.get_train_dataloader())))
        loss.backward()
        policy, base = reference.exact(model), reference.exact(ref)
        ratios = [reference.logprob(policy, a) - reference.logprob(base, a).detach() for a in made]
        with torch.no_grad():
            gaps = [reference.logprob(policy, a) - reference.logprob(base, a) for a in mismatched(made)]
        kl = float(sum(gaps)) / len(gaps)
        value = reference.kto_loss(
            [r.item() for r in ratios], LABELS, kl, beta=BETA, desirable=1.5, undesirable=0.7
        )
        assert loss.item() == pytest.approx(value, rel=1e-5)
        z = max(0.0, kl)
        total = sum(
            1.5 * (1 - torch.sigmoid(BETA * (r - z))) if good else 0.7 * (1 - torch.sigmoid(BETA * (z - r)))
            for r, good in zip(ratios, LABELS, strict=True)
        )
        (total / len(made)).backward()
        found, wanted = reference.gradients(trainer.model), reference.gradients(policy)
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5


@pytest.mark.slow
def test_first_update_equals_stock_trl_on_the_same_conversations(
    model_path: Path, other_path: Path, tmp_path: Path
) -> None:
    texts = [("2+3=", "5"), ("2+4=", "The answer is 7."), ("9-4=", "five"), ("Name a tree.", "Oak, or elm.")]
    labels = [True, False, False, True]
    rows = [
        {
            "prompt": [{"role": "user", "content": prompt}],
            "completion": [{"role": "assistant", "content": answer}],
            "label": label,
        }
        for (prompt, answer), label in zip(texts, labels, strict=True)
    ]
    tokenizer = load_tokenizer(model_path)
    made = [rendered_answer(tokenizer, [*row["prompt"], *row["completion"]], 1) for row in rows]
    options = {"learning_rate": 1e-2, "max_steps": 1, "optim": "sgd", "beta": BETA}
    ours = trainer_of(model_path, other_path, made, labels, tmp_path, **options)
    stock = KTOTrainer(
        model=load_model(model_path),
        ref_model=load_model(other_path),
        args=KTOConfig(
            str(tmp_path / "stock"),
            per_device_train_batch_size=4,
            **STOCK,
            **options,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer(model_path),
    )
    start = load_model(model_path).state_dict()
    require_same_update(ours, stock, start, least=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired"])
def test_training_writes_a_model_whose_reference_was_its_start(
    model_path: Path, tmp_path: Path, loss: str
) -> None:
    made, labels = reference.answers(9, 5), LABELS
    options = {
        "max_steps": 2,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 2,
        "loss_type": loss,
        "precompute_ref_log_probs": loss == "kto",
    }
    fitted = train_kto(model_path, made, labels, tmp_path / "out", options=options, seed=0)
    assert fitted.metrics["loss_first"] == pytest.approx(0.5, abs=1e-6)  # 1 - sigmoid(0)
    assert fitted.metrics["steps"] == 2
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_bad_options_and_too_few_rows_are_refused(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="per_device_train_batch_size is 1; the KL term"):
        kto_config(tmp_path, options={"per_device_train_batch_size": 1}, seed=0)
    with pytest.raises(RecipeError, match="'bco' is not known"):
        kto_config(tmp_path, options={"loss_type": "bco"}, seed=0)
    with pytest.raises(RecipeError, match="'train_sampling_strategy' cannot be set here"):
        kto_config(tmp_path, options={"train_sampling_strategy": "random"}, seed=0)
    with pytest.raises(TrainingError, match="at least two rows, found 1"):
        train_kto(model_path, reference.answers(1, 1), [True], tmp_path, options={}, seed=0)
