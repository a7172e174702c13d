"""A trained reward model in memory, and its scores of conversations, several in one forward pass.

A conversation is rendered with the model's own chat template, as the stage `reward_model` trained it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.core.gpus import gpu_number
from rft_data.core.lookup import need
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

_KIND = "ForSequenceClassification"
_TOKENS = 8192
"""Most tokens of a forward pass, padding included; one longer conversation is a pass by itself."""

Conversation: TypeAlias = Sequence[Mapping[str, object]]


class ConversationScorer:
    """The model's one score of a whole conversation; it has no fixed range."""

    def __init__(self, model: str, device: str, batch: int) -> None:
        """Load it, in float32.

        Args:
            model: folder of a sequence classifier with one label. device: torch's name, for example `cuda:1`.
            batch: most conversations of a forward pass.
        Raises: MissingFileError when there is no model in the folder; RecipeError when it is no reward model
            (transformers would give it a random score), or has no chat template, and for a device that is
            not here.
        """
        folder = Path(model)
        if not (folder / "config.json").is_file():
            raise MissingFileError(
                f"reward model '{folder.absolute()}' has no config.json, so it is no model; give the "
                "folder of a reward_model stage, as a path that every explorer can read."
            )
        need("transformers", "train", "a reward model")
        import torch
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

        _check_device(device)
        config = AutoConfig.from_pretrained(folder)
        kinds = config.architectures or ()
        if config.num_labels != 1 or not any(kind.endswith(_KIND) for kind in kinds):
            raise RecipeError(
                f"'{folder}' is a {', '.join(kinds) or 'model of no named class'} with {config.num_labels} "
                "labels, not a reward model; wanted a sequence classifier with one."
            )
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        if self._tokenizer.chat_template is None:
            raise RecipeError(f"the tokenizer of reward model '{folder}' has no chat template; give it one.")
        loaded = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        self._model = loaded.to(device).eval()
        text_config = config.get_text_config()
        self._longest = getattr(text_config, "max_position_embeddings", None)
        self._pad = getattr(text_config, "pad_token_id", None)
        # Without a padding token transformers does not find where each conversation ends.
        self._batch = batch if self._pad is not None else 1

    def scores(self, conversations: Sequence[Conversation]) -> list[float | Unscored]:
        """One score each, in order: Unscored where a conversation is too long, or the score is not finite."""
        rendered = [
            self._tokenizer.apply_chat_template(list(one), return_dict=False) for one in conversations
        ]
        found: list[float | Unscored] = [self._too_long(ids) for ids in rendered]
        readable = [
            at for at, ids in enumerate(rendered) if self._longest is None or len(ids) <= self._longest
        ]
        for places in self._batches(sorted(readable, key=lambda at: len(rendered[at])), rendered):
            for place, score in zip(places, self._forward([rendered[at] for at in places]), strict=True):
                found[place] = score if math.isfinite(score) else _not_finite(score)
        return found

    def _too_long(self, ids: Sequence[int]) -> Unscored:
        return Unscored(f"the conversation has {len(ids)} tokens and the reward model reads {self._longest}")

    def _batches(self, places: Sequence[int], rendered: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Places, sorted by length, cut into forward passes."""
        batch: list[int] = []
        for place in places:
            if batch and (len(batch) == self._batch or (len(batch) + 1) * len(rendered[place]) > _TOKENS):
                yield batch
                batch = []
            batch.append(place)
        if batch:
            yield batch

    def _forward(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """The scores of token rows, padded at their ends."""
        import torch

        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self._pad or 0)
        mask = torch.zeros_like(ids)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = torch.tensor(row)
            mask[at, : len(row)] = 1
        device = self._model.device
        with torch.inference_mode():
            given = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
            scores: list[float] = self._model(**given, use_cache=False).logits[:, 0].tolist()
        return scores


def _check_device(name: str) -> None:
    """Raises: RecipeError for a device that torch does not know, or a GPU that this process does not see."""
    import torch

    try:
        torch.device(name)
    except RuntimeError as err:
        why = str(err).splitlines()[0]
        raise RecipeError(
            f"a reward model has device {name!r}, which is none of torch's ({why}); give cpu, cuda or cuda:1."
        ) from err
    number = gpu_number(name)
    if number is not None and number >= (seen := torch.cuda.device_count()):
        raise RecipeError(
            f"a reward model has device '{name}', and this process sees {seen} GPUs, numbered from 0; give "
            "one of them, or cpu. An explorer sees its placement.explorers.gpus, of which its engine takes "
            "the first."
        )


def _not_finite(score: float) -> Unscored:
    return Unscored(f"the reward model gave {score}; wanted a finite number", UnscoredCause.JUDGE)
