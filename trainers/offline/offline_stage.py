"""One offline stage: from its choice of stored rows to a model folder that lists what it was trained on.

Rows are chosen in `stored_rows.py` and `stored_pairs.py`; each algorithm trains in its own module.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from rft_data.core.canonical import content_id
from rft_data.core.errors import RecipeError, RowError, TrainingError
from rft_data.core.reader import BufferReader
from rft_data.core.rows import PreferencePair
from trainers.models.adapters import adapter_config
from trainers.models.weights import load_tokenizer
from trainers.offline.answers import (
    Answer,
    AnswerPair,
    answer_pair,
    pair_loses_calls,
    rendered_row,
    row_loses_calls,
    stored_answers,
    warn_of_lost_calls,
)
from trainers.offline.dpo import dpo_config, train_dpo
from trainers.offline.kto import kto_config, train_kto
from trainers.offline.offline_fit import Fitted
from trainers.offline.readable import check_positions, require_vocabulary
from trainers.offline.reward_model import reward_config, train_reward_model
from trainers.offline.sft import sft_config, train_sft
from trainers.offline.stored_pairs import PairChoice, chosen_pairs, sampled_rows
from trainers.offline.stored_rows import RowChoice, chosen_rows

log = logging.getLogger(__name__)

TRAINED_ON = "trained_on.jsonl"
"""File in a stage's folder: the ids of its examples as JSON, one example a line."""


@dataclass(frozen=True, slots=True)
class StageInput:
    """The model that a stage trains, and its rows."""

    model: Path
    output: Path
    options: Mapping[str, object]
    """The stage's `trl`."""
    data: Mapping[str, Any]
    """The fields of `RowChoice` (for kto with `threshold`), or of `PairChoice`."""
    seed: int
    heldout: float
    """Share of prompts that are not trained on."""
    lora: Mapping[str, object] | None = None
    """The stage's `lora`; None: every weight is trained."""

    @property
    def max_length(self) -> int | None:
        """The stage's `trl: {max_length}`, longest sequence in tokens; None: no limit.

        Raises: RecipeError when it is no whole number.
        """
        given = self.options.get("max_length")
        if given is not None and not isinstance(given, int):
            raise RecipeError(f"trl.max_length is {given!r}, must be a whole number of tokens, or null.")
        return given


@dataclass(frozen=True, slots=True)
class StageReport:
    """The result of a stage."""

    examples: int
    """Rows or pairs it was trained on."""
    digest: str
    """Content hash of the examples' ids, sorted."""
    left_out: Mapping[str, int]
    """How many rows or pairs were left out, by reason."""
    metrics: Mapping[str, float]
    """See `Fitted.metrics`."""
    history: Sequence[Mapping[str, float]] = field(default_factory=tuple)
    """See `Fitted.history`."""


@dataclass(frozen=True, slots=True)
class _Trained:
    """A stage's training, with the ids of its examples."""

    names: Sequence[Mapping[str, str | None]]
    left_out: Mapping[str, int]
    fitted: Fitted


def run_stage(store: BufferReader, algorithm: str, given: StageInput) -> StageReport:
    """Train, and write the model and TRAINED_ON into one folder.

    Args: store: a buffer, or a client of its hub. algorithm: a name in STAGES.
    Raises: what the trainers raise; TrainingError when no row is left; RowError for rows that are damaged.
    """
    trained = STAGES[algorithm](store, given)
    names = sorted(trained.names, key=lambda name: json.dumps(name, sort_keys=True))
    lines = [json.dumps(name) for name in names]
    (given.output / TRAINED_ON).write_text("\n".join([*lines, ""]))
    for reason, count in trained.left_out.items():
        log.info("%s: %d left out: %s", algorithm, count, reason)
    left_out = dict(trained.left_out)
    return StageReport(
        len(names), content_id(names), left_out, trained.fitted.metrics, trained.fitted.history
    )


def _sft(store: BufferReader, given: StageInput) -> _Trained:
    chosen = chosen_rows(store, RowChoice(**given.data), given.heldout)
    require_vocabulary(given.model, chosen.table)
    has_answer = [mask is None or any(mask) for mask in chosen.table["action_mask"].to_pylist()]
    table, left_out = chosen.table.filter(pa.array(has_answer)), Counter(chosen.left_out)
    if empty := has_answer.count(False):
        left_out["an answer has no token that the assistant wrote"] += empty
    fitted = train_sft(
        given.model, table, given.output, options=given.options, seed=given.seed, lora=given.lora
    )
    return _Trained(_row_names(table["experience_id"].to_pylist()), left_out, fitted)


def _kto(store: BufferReader, given: StageInput) -> _Trained:
    data = dict(given.data)
    threshold = np.float32(data.pop("threshold"))
    chosen = chosen_rows(store, RowChoice(**data), given.heldout)
    require_vocabulary(given.model, chosen.table)
    left_out = Counter(chosen.left_out)
    answers, labels, names = [], [], []
    found = row_answers(chosen.table, load_tokenizer(given.model))
    limit = given.max_length
    for name, answer, score in zip(
        chosen.table["experience_id"].to_pylist(), found, chosen.scores, strict=True
    ):
        if reason := _unfit(answer, limit) or ("" if np.isfinite(score) else "the row has no reward"):
            left_out[reason] += 1
            continue
        answers.append(answer)
        labels.append(bool(np.float32(score) >= threshold))
        names.append(name)
    check_positions(given.model, (len(one.ids) for one in answers))
    if len(set(labels)) == 1:
        log.warning("kto: all %d rows are %sdesirable", len(labels), "" if labels[0] else "un")
    fitted = train_kto(
        given.model, answers, labels, given.output, options=given.options, seed=given.seed, lora=given.lora
    )
    return _Trained(_row_names(names), left_out, fitted)


class _PairTrainer(Protocol):
    """`train_dpo` or `train_reward_model`."""

    def __call__(
        self,
        model_path: Path,
        pairs: Sequence[AnswerPair],
        output_dir: Path,
        *,
        options: Mapping[str, object],
        seed: int,
        lora: Mapping[str, object] | None,
    ) -> Fitted: ...


def _pairs(train: _PairTrainer) -> Callable[[BufferReader, StageInput], _Trained]:
    def stage(store: BufferReader, given: StageInput) -> _Trained:
        chosen = chosen_pairs(store, PairChoice(**given.data), given.heldout)
        pairs, tokens, refused = pair_tokens(store, chosen.pairs, given.model, limit=given.max_length)
        check_positions(given.model, (len(one.ids) for both in tokens for one in both))
        fitted = train(
            given.model, tokens, given.output, options=given.options, seed=given.seed, lora=given.lora
        )
        return _Trained([_pair_name(pair) for pair in pairs], {**chosen.left_out, **refused}, fitted)

    return stage


STAGES: Mapping[str, Callable[[BufferReader, StageInput], _Trained]] = {
    "sft": _sft,
    "dpo": _pairs(train_dpo),
    "kto": _kto,
    "reward_model": _pairs(train_reward_model),
}
"""Offline stages by the name that recipes use."""


_CONFIGS: Mapping[str, Callable[..., object]] = {
    "sft": sft_config,
    "dpo": dpo_config,
    "kto": kto_config,
    "reward_model": reward_config,
}


def check_stage(
    algorithm: str,
    folder: Path,
    *,
    options: Mapping[str, object],
    seed: int,
    lora: Mapping[str, object] | None = None,
) -> None:
    """Build a stage's TRL config, and PEFT's, so that a mistake is found before any work.

    Raises: RecipeError; MissingExtraError for `lora` without PEFT.
    """
    _CONFIGS[algorithm](folder, options=options, seed=seed)
    adapter_config(lora)


def row_answers(table: pa.Table, tokenizer: PreTrainedTokenizerBase) -> list[Answer]:
    """The answers of EXPERIENCES rows: their stored ids, else their messages, rendered.

    Raises: RowError naming a row with neither.
    """
    names = ("experience_id", "messages", "prompt_messages", "tools", "metadata")
    rows = table.select(names).to_pylist()
    stored = stored_answers(table)
    answers = [answer or rendered_row(tokenizer, row) for answer, row in zip(stored, rows, strict=True)]
    lost = sum(row_loses_calls(tokenizer, row, one) for row, one in zip(rows, answers, strict=True))
    warn_of_lost_calls(lost, len(rows))
    return answers


def pair_tokens(
    store: BufferReader, pairs: Sequence[PreferencePair], model: Path, *, limit: int | None = None
) -> tuple[list[PreferencePair], list[AnswerPair], Mapping[str, int]]:
    """Pairs as token ids: the stored ids of the experiences they came from, else rendered messages.

    Args: limit: longest sequence, in tokens; pairs with a longer one are left out.
    Returns: (pairs that can be used, their tokens, how many cannot, by reason).
    Raises: TrainingError when no pair can be used.
    """
    tokenizer = load_tokenizer(model)
    stored: dict[str, Answer] = {}
    for table in sampled_rows(store, pairs):
        require_vocabulary(model, table)
        rows = zip(table["experience_id"].to_pylist(), table["payloads"].to_pylist(), strict=True)
        answers = zip(rows, stored_answers(table), strict=True)
        stored |= {name: answer for (name, shown), answer in answers if answer and not shown}
    refused: Counter[str] = Counter()
    usable, tokens = [], []
    for pair in pairs:
        try:
            both = answer_pair(tokenizer, pair, stored)
        except RowError as err:
            refused[str(err)] += 1
            continue
        if reason := _unfit(both[0], limit) or _unfit(both[1], limit):
            refused[reason] += 1
            continue
        usable.append(pair)
        tokens.append(both)
    lost = sum(pair_loses_calls(tokenizer, *one) for one in zip(usable, tokens, strict=True))
    warn_of_lost_calls(lost, len(tokens))
    if not tokens:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in refused.items())
        raise TrainingError(f"none of {len(pairs)} preference pairs can be trained on: {reasons}.")
    return usable, tokens, dict(refused)


def _unfit(answer: Answer, limit: int | None) -> str:
    """The reason why an answer cannot be trained on; empty if it can."""
    if limit is not None and len(answer.ids) > limit:
        return f"longer than {limit} tokens (trl.max_length, or the positions of the model)"
    return "" if any(answer.mask) else "an answer has no token that the assistant wrote"


def _row_names(experiences: Sequence[str]) -> list[Mapping[str, str | None]]:
    return [{"experience_id": name} for name in experiences]


def _pair_name(pair: PreferencePair) -> Mapping[str, str | None]:
    return {
        "preference_id": pair.preference_id,
        "chosen_experience_id": pair.chosen_experience_id,
        "rejected_experience_id": pair.rejected_experience_id,
    }
