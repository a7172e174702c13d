"""A Bradley-Terry reward model on stored preference pairs, with TRL's stock RewardTrainer.

It is the start model with one score instead of its vocabulary, read at the last token. It is no policy: later
stages start from the model that was there before. Explorers use it as the reward `reward_model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from trl import RewardConfig, RewardTrainer

from rft_data.core.errors import RecipeError
from rft_data.core.model_folder import takes_images
from trainers.models.adapters import adapter_config, merged_model
from trainers.models.options import build_config, built, check_options, loading_options
from trainers.models.owned import PREFERENCE_OWNED
from trainers.models.weights import load_tokenizer
from trainers.offline.answers import AnswerPair
from trainers.offline.offline_fit import Fitted, callbacks, fit
from trainers.offline.preference_data import pair_dataset

if TYPE_CHECKING:
    from peft import LoraConfig


def reward_config(output_dir: Path, *, options: Mapping[str, object], seed: int) -> RewardConfig:
    """The real RewardConfig of one stage; rows of any length are used unless `max_length` is given.

    Raises: RecipeError when an option is unknown or may not be set by a recipe.
    """
    check_options(options, RewardConfig, PREFERENCE_OWNED)
    return build_config(RewardConfig, output_dir, {"max_length": None, **options}, {"seed": seed})


def load_scorer(model_path: Path, **kwargs: object) -> PreTrainedModel:
    """The model in a folder with one score; a head that is not stored there is random, from torch's seed.

    Raises: RecipeError for a model that looks at images.
    """
    if takes_images(Path(model_path)):
        raise RecipeError(
            f"the model in '{model_path}' looks at images, and a reward model is made from a model of text; "
            "train it in a recipe whose 'model' is one."
        )
    given = {"dtype": torch.float32, **kwargs, "num_labels": 1}
    return AutoModelForSequenceClassification.from_pretrained(model_path, **given)


def reward_trainer(
    model: PreTrainedModel,
    config: RewardConfig,
    pairs: Sequence[AnswerPair],
    tokenizer: PreTrainedTokenizerBase,
    adapter: LoraConfig | None = None,
) -> RewardTrainer:
    """The trainer, ready to `train`.

    Args: adapter: PEFT's LoraConfig for a classifier; None: every weight is trained.
    Raises: RecipeError when TRL refuses the options together.
    """
    rows = pair_dataset(pairs).select_columns(["chosen_ids", "rejected_ids"])
    return built(
        lambda: RewardTrainer(
            model=model,
            args=config,
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=callbacks("reward_model"),
            peft_config=adapter,
        ),
        "RewardTrainer",
    )


def train_reward_model(
    model_path: Path,
    pairs: Sequence[AnswerPair],
    output_dir: Path,
    *,
    options: Mapping[str, object],
    seed: int,
    lora: Mapping[str, object] | None = None,
) -> Fitted:
    """Train a reward model from the model in `model_path` and write it to `output_dir`.

    The loss is -log sigmoid(score of the better answer - score of the worse).

    Args:
        options: the stage's `trl: {...}`, fields of TRL's RewardConfig.
        lora: the stage's `lora: {...}`, fields of PEFT's LoraConfig: the score is trained whole beside the
            adapter; None: every weight is trained.
    Raises: RecipeError for bad options; TrainingError when a loss or a gradient is not finite.
    """
    config = reward_config(output_dir, options=options, seed=seed)
    adapter = adapter_config(lora, "SEQ_CLS")
    tokenizer = load_tokenizer(model_path)
    set_seed(seed)
    model = load_scorer(model_path, **loading_options(options))
    trainer = reward_trainer(model, config, pairs, tokenizer, adapter)
    fitted = fit(trainer)
    merged, state = merged_model(trainer.accelerator.unwrap_model(trainer.model))
    merged.save_pretrained(output_dir, state_dict=state)
    tokenizer.save_pretrained(output_dir)
    return fitted
