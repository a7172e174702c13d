"""Supervised fine-tuning on stored experiences, with TRL's stock SFTTrainer.

Sampled rows keep their token ids; rows that only have messages (expert answers) are tokenised with the
model's chat template. One call makes one trained model folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from rft_data.core.errors import RowError, TrainingError
from trainers.models.adapters import adapter_config
from trainers.models.options import build_config, built, check_options, loading_options
from trainers.models.owned import SFT_OWNED
from trainers.models.weights import load_model, load_tokenizer
from trainers.offline.answers import rendered_row, row_loses_calls, warn_of_lost_calls
from trainers.offline.offline_fit import Fitted, callbacks, fit, save
from trainers.offline.readable import check_positions

if TYPE_CHECKING:
    from peft import LoraConfig

_IGNORED = -100
"""PyTorch's label for a token that is not trained on."""


def train_sft(
    model_path: Path,
    table: pa.Table,
    output_dir: Path,
    *,
    options: Mapping[str, object],
    seed: int,
    lora: Mapping[str, object] | None = None,
) -> Fitted:
    """Train the model in `model_path` on the rows' sampled tokens and write it to `output_dir`.

    Args:
        table: EXPERIENCES rows; those without `token_ids` must have `messages`, the last of them the
            assistant's.
        options: the recipe's `trl: {...}`, fields of TRL's SFTConfig.
        lora: the stage's `lora: {...}`, fields of PEFT's LoraConfig; None: every weight is trained.
    Returns: what was measured; losses are nats per token.
    Raises: RecipeError for bad options, RowError for bad rows, TrainingError when there is no row, one is
        longer than the model can read, or the loss or a gradient is not finite.
    """
    config, adapter = sft_config(output_dir, options=options, seed=seed), adapter_config(lora)
    if table.num_rows == 0:
        raise TrainingError("there is no experience to train on; loosen the recipe's filters.")
    tokenizer = load_tokenizer(model_path)
    rows = sft_dataset(table, tokenizer)
    check_positions(model_path, map(len, rows["input_ids"]), config.max_length)
    model = load_model(model_path, **loading_options(options))
    trainer = sft_trainer(model, config, rows, tokenizer, adapter)
    fitted = fit(trainer)
    save(trainer, tokenizer, model_path, output_dir)
    return fitted


def sft_trainer(
    model: PreTrainedModel,
    config: SFTConfig,
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    adapter: LoraConfig | None = None,
) -> SFTTrainer:
    """The trainer, ready to `train`.

    Args: rows: as `sft_dataset` makes them. adapter: PEFT's LoraConfig; None: every weight is trained.
    Raises: RecipeError when TRL refuses the options together.
    """
    return built(
        lambda: SFTTrainer(
            model=model,
            args=config,
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=callbacks("sft"),
            peft_config=adapter,
        ),
        "SFTTrainer",
    )


def sft_config(output_dir: Path, *, options: Mapping[str, object], seed: int) -> SFTConfig:
    """The real SFTConfig of one run.

    Raises: RecipeError when an option is unknown or may not be set by a recipe.
    """
    check_options(options, SFTConfig, SFT_OWNED)
    # By default TRL cuts rows at 1,024 tokens, and so answers.
    return build_config(SFTConfig, output_dir, {"max_length": None, **options}, {"seed": seed})


def sft_dataset(table: pa.Table, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """`input_ids` and `labels` (the ids where the action mask is 1, else -100), one per row, in order.

    Raises: RowError when a row has neither token ids nor an answer, or its lists differ in length.
    """
    stored = np.asarray(table.column("token_ids").is_valid())
    order = np.concatenate([np.flatnonzero(stored), np.flatnonzero(~stored)])
    parts = pa.concat_tables(
        [_stored(table.filter(pa.array(stored))), _rendered(table.filter(pa.array(~stored)), tokenizer)]
    )
    return Dataset(parts.take(pa.array(np.argsort(order))))


def _stored(table: pa.Table) -> pa.Table:
    """Rows with token ids: labels are the ids where the action mask is 1."""
    ids = table.column("token_ids").combine_chunks()
    mask = table.column("action_mask").combine_chunks()
    if mask.null_count or not np.array_equal(np.diff(ids.offsets), np.diff(mask.offsets)):
        raise RowError(
            "a row's action_mask is missing or differs in length from its token_ids; filter such rows out."
        )
    flat = ids.flatten().to_numpy()
    labels = np.where(mask.flatten().to_numpy() == 1, flat, _IGNORED)
    # `filter` has copied the lists, so the offsets begin at 0, as the flat values do.
    return _columns(
        pa.ListArray.from_arrays(ids.offsets, flat), pa.ListArray.from_arrays(ids.offsets, labels)
    )


def _rendered(table: pa.Table, tokenizer: PreTrainedTokenizerBase) -> pa.Table:
    """Rows with messages only: labels are the ids of the assistant's messages after the prompt."""
    input_ids, labels, lost = [], [], 0
    names = ("experience_id", "messages", "prompt_messages", "tools", "metadata")
    for row in table.select(names).to_pylist():
        answer = rendered_row(tokenizer, row)
        lost += row_loses_calls(tokenizer, row, answer)
        input_ids.append(answer.ids)
        labels.append([i if kept else _IGNORED for i, kept in zip(answer.ids, answer.mask, strict=True)])
    warn_of_lost_calls(lost, len(input_ids))
    return _columns(pa.array(input_ids, pa.list_(pa.int32())), pa.array(labels, pa.list_(pa.int32())))


def _columns(input_ids: pa.Array, labels: pa.Array) -> pa.Table:
    kind = pa.list_(pa.int32())
    return pa.table({"input_ids": input_ids.cast(kind), "labels": labels.cast(kind)})
