"""DPO and its relatives on stored preference pairs, with TRL's DPOTrainer (arXiv:2305.18290).

Every loss type of TRL's DPO can be used. Pairs are ids with masks, so that in conversations of many turns
only the assistant's tokens enter the loss. The reference is the model that the stage starts from: a second
copy, or with LoRA the same model without its adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import DPOConfig, DPOTrainer

from rft_data.core.errors import RecipeError
from trainers.models.adapters import adapter_config
from trainers.models.loss_types import check_loss
from trainers.models.options import build_config, built, check_options, loading_options
from trainers.models.owned import DPO_OWNED
from trainers.models.weights import load_model, load_tokenizer, padding_id
from trainers.offline.answers import AnswerPair
from trainers.offline.offline_fit import Fitted, callbacks, fit, save
from trainers.offline.preference_data import PAIR_COLUMNS, PairBatches, pair_dataset

if TYPE_CHECKING:
    from peft import LoraConfig


class StoredDPOTrainer(DPOTrainer):
    """TRL's trainer without its preparation of rows: ours are ready."""

    def _prepare_dataset(self, dataset: Dataset, *_: object) -> Dataset:
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = [*PAIR_COLUMNS, "ref_chosen_logps", "ref_rejected_logps"]


def dpo_config(output_dir: Path, *, options: Mapping[str, object], seed: int) -> DPOConfig:
    """The real DPOConfig of one stage; nothing is cut unless the recipe gives `max_length`.

    Raises: RecipeError when an option or a loss type is unknown, or may not be set by a recipe.
    """
    check_options(options, DPOConfig, DPO_OWNED)
    config = build_config(DPOConfig, output_dir, {"max_length": None, **options}, {"seed": seed})
    check_loss("dpo", config.loss_type)
    if "exo_pair" in config.loss_type and config.label_smoothing == 0.0:
        raise RecipeError(
            "trl.loss_type 'exo_pair' needs 'trl.label_smoothing' above 0 (its paper, arXiv:2402.00856, "
            "takes 0.001)."
        )
    return config


def dpo_trainer(
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    config: DPOConfig,
    pairs: Sequence[AnswerPair],
    tokenizer: PreTrainedTokenizerBase,
    adapter: LoraConfig | None = None,
) -> DPOTrainer:
    """The trainer, ready to `train`.

    Args:
        reference: None: the model without its adapter; or, where it has none, its logprobs before the first
            step.
        adapter: PEFT's LoraConfig; None: every weight is trained.
    Raises: RecipeError when TRL refuses the options together.
    """
    return built(
        lambda: StoredDPOTrainer(
            model=model,
            ref_model=reference,
            args=config,
            train_dataset=pair_dataset(pairs),
            data_collator=PairBatches(padding_id(tokenizer), config.pad_to_multiple_of),
            processing_class=tokenizer,
            callbacks=callbacks("dpo"),
            peft_config=adapter,
        ),
        "DPOTrainer",
    )


def start_models(
    model_path: Path, options: Mapping[str, object], adapter: LoraConfig | None
) -> tuple[PreTrainedModel, PreTrainedModel | None]:
    """The start model to train, and a second copy as the reference; None where TRL needs no copy."""
    loading = loading_options(options)
    alone = adapter is not None or options.get("precompute_ref_log_probs")
    # TRL would load the reference from the path in the model's config, which may be another folder
    return load_model(model_path, **loading), None if alone else load_model(model_path, **loading)


def train_dpo(
    model_path: Path,
    pairs: Sequence[AnswerPair],
    output_dir: Path,
    *,
    options: Mapping[str, object],
    seed: int,
    lora: Mapping[str, object] | None = None,
) -> Fitted:
    """Train the model in `model_path` on pairs and write it to `output_dir`.

    Args:
        options: the stage's `trl: {...}`, fields of TRL's DPOConfig.
        lora: the stage's `lora: {...}`, fields of PEFT's LoraConfig; None: every weight is trained.
    Raises: RecipeError for bad options; TrainingError when a loss or a gradient is not finite.
    """
    config, adapter = dpo_config(output_dir, options=options, seed=seed), adapter_config(lora)
    tokenizer = load_tokenizer(model_path)
    model, reference = start_models(model_path, options, adapter)
    trainer = dpo_trainer(model, reference, config, pairs, tokenizer, adapter)
    fitted = fit(trainer)
    save(trainer, tokenizer, model_path, output_dir)
    return fitted
