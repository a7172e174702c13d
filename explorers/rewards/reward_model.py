"""The reward `reward_model`: the score of a trained reward model.

The conversation is rendered with the model's chat template, as the stage `reward_model` trained it.
"""

from __future__ import annotations

from pathlib import Path

from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.core.lookup import need
from rft_data.core.protocols import Unscored
from rft_data.core.rows import Task

_KIND = "ForSequenceClassification"


class RewardModel:
    """The model's one score of the task's messages and the completion; it has no fixed range."""

    def __init__(self, model: str, device: str = "cpu") -> None:
        """Load it, in float32; a process that computes rewards holds a copy of its own.

        Args:
            model: folder of a sequence classifier with one label, for example the stage's.
            device: torch's name, for example `cuda:1`; engines do not make room for it.
        Raises: MissingFileError when there is no model in the folder; RecipeError when it is no reward model
            (transformers would give it a random score), or has no chat template.
        """
        folder = Path(model)
        if not (folder / "config.json").is_file():
            raise MissingFileError(
                f"reward model '{folder.absolute()}' has no config.json, so it is no model; give the "
                "folder of a reward_model stage, as a path that every explorer can read."
            )
        need("transformers", "train", "the reward reward_model")
        import torch
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

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
        self._longest = getattr(config.get_text_config(), "max_position_embeddings", None)

    def __call__(self, task: Task, completion: str) -> float | Unscored:
        """Unscored when the conversation is longer than the model can read."""
        import torch

        messages = [*map(dict, task.messages), {"role": "assistant", "content": completion}]
        ids = self._tokenizer.apply_chat_template(messages, return_dict=False)
        if self._longest is not None and len(ids) > self._longest:
            return Unscored(
                f"the conversation has {len(ids)} tokens and the reward model reads {self._longest}"
            )
        with torch.inference_mode():
            given = torch.tensor([ids], device=self._model.device)
            return float(self._model(input_ids=given, use_cache=False).logits[0, 0])
