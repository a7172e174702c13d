"""Supervised fine-tuning on stored experiences, with TRL's stock SFTTrainer.

Sampled rows keep their token ids; rows that only have messages (expert answers) are tokenised here
with the model's chat template. Offline: one call, one trained model folder.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import (
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from trl import SFTConfig, SFTTrainer

from rft_data.errors import RowError, TrainingError
from trainers.finite import FiniteGradients
from trainers.options import OWNED, build_config, check_options, refused
from trainers.threads import every_core
from trainers.weights import load_model, load_tokenizer

log = logging.getLogger(__name__)

SFT_OWNED: Mapping[str, str] = {
    **OWNED,
    **refused(
        "rows come tokenised, with their own mask",
        *("dataset_text_field", "dataset_kwargs", "completion_only_loss", "assistant_only_loss"),
        *("chat_template_path", "eos_token", "pad_token"),
    ),
}
"""Fields of SFTConfig that no recipe may set, and the reason."""

_IGNORED = -100
"""PyTorch's label for a token that is not trained on."""


class _Progress(TrainerCallback):  # type: ignore[misc]
    """A line for each tenth of the steps."""

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        every = max(1, state.max_steps // 10)
        if "loss" in kwargs["logs"] and state.global_step % every == 0:
            log.info("sft step %d/%d  loss %.3f", state.global_step, state.max_steps, kwargs["logs"]["loss"])


def train_sft(
    model_path: Path, table: pa.Table, output_dir: Path, *, options: Mapping[str, Any], seed: int
) -> dict[str, float]:
    """Train the model in `model_path` on the rows' sampled tokens and write it to `output_dir`.

    Args:
        table: EXPERIENCES rows; those without `token_ids` must have `messages` that end with the
            assistant's.
        options: the recipe's `trl: {...}`, fields of TRL's SFTConfig.
    Returns: `loss_first`, `loss_last` (nats per token), `steps` and `wall_s`.
    Raises: RecipeError for bad options, RowError for bad rows, TrainingError when there is no row or
        the loss or a gradient is not finite.
    """
    config = sft_config(output_dir, options=options, seed=seed)
    if table.num_rows == 0:
        raise TrainingError("there is no experience to train on; loosen the recipe's filters.")
    tokenizer = load_tokenizer(model_path)
    trainer = SFTTrainer(
        model=load_model(model_path, **(options.get("model_init_kwargs") or {})),
        args=config,
        train_dataset=sft_dataset(table, tokenizer),
        processing_class=tokenizer,
        callbacks=[FiniteGradients(), _Progress()],
    )
    trainer.remove_callback(PrinterCallback)
    started = time.perf_counter()
    try:
        with every_core():
            trainer.train()
    except TrainingError as err:
        step = trainer.state.global_step + 1
        raise TrainingError(f"optimizer step {step}: {err}. No model is written.") from err
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    trainer.accelerator.unwrap_model(trainer.model).save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    return {
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "steps": float(len(losses)),
        "wall_s": time.perf_counter() - started,
    }


def sft_config(output_dir: Path, *, options: Mapping[str, Any], seed: int) -> SFTConfig:
    """The real SFTConfig of one run.

    Raises: RecipeError when an option is unknown or not the recipe's to set.
    """
    check_options(options, SFTConfig, SFT_OWNED)
    # TRL would cut rows at 1,024 tokens, and with them the answer.
    return build_config(SFTConfig, output_dir, {"max_length": None, **options}, {"seed": seed})


def sft_dataset(table: pa.Table, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """`input_ids` and `labels` (the ids where the action mask is 1, else -100), one per row, in order.

    Raises: RowError when a row has neither token ids nor an answer, or its lists differ in length.
    """
    stored = np.asarray(table.column("token_ids").is_valid())
    order = np.concatenate([np.flatnonzero(stored), np.flatnonzero(~stored)])
    parts = pa.concat_tables(
        [_stored(table.filter(pa.array(stored))), _expert(table.filter(pa.array(~stored)), tokenizer)]
    )
    return Dataset(parts.take(pa.array(np.argsort(order))))


def _stored(table: pa.Table) -> pa.Table:
    """Rows with token ids: labels are the ids that the action mask keeps."""
    ids = table.column("token_ids").combine_chunks()
    mask = table.column("action_mask").combine_chunks()
    if mask.null_count or not np.array_equal(np.diff(ids.offsets), np.diff(mask.offsets)):
        raise RowError(
            "a row's action_mask is missing or differs in length from its token_ids; filter such rows out."
        )
    flat = ids.flatten().to_numpy()
    labels = np.where(mask.flatten().to_numpy() == 1, flat, _IGNORED)
    # `filter` has made new lists, so the offsets begin at 0 like the flat values.
    return _columns(
        pa.ListArray.from_arrays(ids.offsets, flat), pa.ListArray.from_arrays(ids.offsets, labels)
    )


def _expert(table: pa.Table, tokenizer: PreTrainedTokenizerBase) -> pa.Table:
    """Rows with messages only: prompt by the chat template, completion = last message and end of sequence."""
    input_ids, labels = [], []
    for name, text in zip(
        table.column("experience_id").to_pylist(), table.column("messages").to_pylist(), strict=True
    ):
        messages = json.loads(text)
        if len(messages) < 2 or messages[-1]["role"] != "assistant":
            raise RowError(
                f"experience '{name}' has no token_ids and its messages do not end with an assistant's "
                "answer to train on; filter it out."
            )
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        answer = tokenizer(messages[-1]["content"], add_special_tokens=False)["input_ids"]
        answer.append(tokenizer.eos_token_id)
        input_ids.append([*prompt, *answer])
        labels.append([_IGNORED] * len(prompt) + answer)
    return _columns(pa.array(input_ids, pa.list_(pa.int32())), pa.array(labels, pa.list_(pa.int32())))


def _columns(input_ids: pa.Array, labels: pa.Array) -> pa.Table:
    kind = pa.list_(pa.int32())
    return pa.table({"input_ids": input_ids.cast(kind), "labels": labels.cast(kind)})
