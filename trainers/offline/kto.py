"""KTO on stored answers that are desirable or not, with TRL's KTOTrainer (arXiv:2402.01306).

Answers are ids with masks. The reference is the model that the stage starts from: a second copy, or with LoRA
the same model without its adapter. No pairs are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import KTOConfig, KTOTrainer

from rft_data.core.errors import RecipeError, TrainingError
from trainers.models.adapters import adapter_config
from trainers.models.loss_types import check_loss
from trainers.models.options import build_config, built, check_options
from trainers.models.owned import KTO_OWNED
from trainers.models.weights import load_tokenizer, padding_id
from trainers.offline.answers import Answer
from trainers.offline.dpo import start_models
from trainers.offline.offline_fit import Fitted, callbacks, fit, save
from trainers.offline.preference_data import KL_COLUMNS, KTO_COLUMNS, KtoBatches, kto_dataset, kto_order

if TYPE_CHECKING:
    from peft import LoraConfig


class StoredKTOTrainer(KTOTrainer):
    """TRL's trainer without its preparation of rows: ours are ready."""

    def _prepare_dataset(self, dataset: Dataset, *_: object) -> Dataset:
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = [*KTO_COLUMNS, *KL_COLUMNS, "ref_logps", "ref_KL_logps"]


def kto_config(output_dir: Path, *, options: Mapping[str, object], seed: int) -> KTOConfig:
    """The real KTOConfig of one stage; nothing is cut unless the recipe gives `max_length`.

    Raises: RecipeError when an option or the loss type is unknown or may not be set by a recipe, or the KL
        term would have batches of one row.
    """
    check_options(options, KTOConfig, KTO_OWNED)
    config = build_config(KTOConfig, output_dir, {"max_length": None, **options}, {"seed": seed})
    check_loss("kto", config.loss_type)
    if config.loss_type == "kto" and config.per_device_train_batch_size < 2:
        raise RecipeError(
            "trl.per_device_train_batch_size is 1; the KL term of loss_type 'kto' compares rows of one "
            "batch: give at least 2, or loss_type 'apo_zero_unpaired'."
        )
    return config


def kto_trainer(
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    config: KTOConfig,
    answers: Sequence[Answer],
    labels: Sequence[bool],
    tokenizer: PreTrainedTokenizerBase,
    adapter: LoraConfig | None = None,
) -> KTOTrainer:
    """The trainer, ready to `train` on the rows in the order given.

    Args: reference, adapter: as in `dpo_trainer`.
    Raises: RecipeError when TRL refuses the options together.
    """
    rotate = config.per_device_train_batch_size if config.loss_type == "kto" else None
    return built(
        lambda: StoredKTOTrainer(
            model=model,
            ref_model=reference,
            args=config,
            train_dataset=kto_dataset(answers, labels, rotate=rotate),
            data_collator=KtoBatches(padding_id(tokenizer), config.pad_to_multiple_of),
            processing_class=tokenizer,
            callbacks=callbacks("kto"),
            peft_config=adapter,
        ),
        "KTOTrainer",
    )


def train_kto(
    model_path: Path,
    answers: Sequence[Answer],
    labels: Sequence[bool],
    output_dir: Path,
    *,
    options: Mapping[str, object],
    seed: int,
    lora: Mapping[str, object] | None = None,
) -> Fitted:
    """Train the model in `model_path` on answers, desirable where the label is True, and write it to a
    folder.

    Args:
        options: the stage's `trl: {...}`, fields of TRL's KTOConfig.
        lora: the stage's `lora: {...}`, fields of PEFT's LoraConfig; None: every weight is trained.
    Raises: RecipeError for bad options; TrainingError when there are fewer than two rows, or a loss or a
        gradient is not finite.
    """
    config, adapter = kto_config(output_dir, options=options, seed=seed), adapter_config(lora)
    if len(answers) < 2:
        raise TrainingError(f"kto needs at least two rows, found {len(answers)}; loosen the stage's 'data'.")
    tokenizer = load_tokenizer(model_path)
    batch = config.per_device_train_batch_size if config.loss_type == "kto" else 1
    order = kto_order(len(answers), batch, seed)
    model, reference = start_models(model_path, options, adapter)
    trainer = kto_trainer(
        model,
        reference,
        config,
        [answers[place] for place in order],
        [labels[place] for place in order],
        tokenizer,
        adapter,
    )
    fitted = fit(trainer)
    save(trainer, tokenizer, model_path, output_dir)
    return fitted
