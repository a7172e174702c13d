"""Prompts as the model of a recipe will see them, and how long they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rft_data.core.chat import message_text
from rft_data.core.errors import RftError
from rft_data.core.rows import Task
from rft_data.recipe.recipe import Recipe
from rft_data.run.data_check.report import Example, Lengths
from rft_data.run.debug.chosen import explored, recipe_tokenizer, seen

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rft_data.core.rows import Message

_MEASURED = 2000
"""Tasks of a taskset that are measured."""


@dataclass(frozen=True, slots=True)
class PromptView:
    """Shows prompts, rendered where there is a recipe whose model has a chat template."""

    recipe: Any = None
    tokenizer: PreTrainedTokenizerBase | None = None

    @classmethod
    def of(cls, recipe: Recipe | None, problems: list[str]) -> PromptView:
        """The view of a recipe's model; what is wrong with that is added to `problems`."""
        if recipe is None or not hasattr(recipe, "explorer"):
            return cls()
        try:
            tokenizer = recipe_tokenizer(explored(recipe))
        except (RftError, OSError, ValueError) as err:
            problems.append(f"the model's tokenizer cannot be loaded, so no token is counted: {err}")
            return cls()
        if tokenizer is not None and tokenizer.chat_template is None:
            problems.append("the model's tokenizer has no chat template; take an instruction-tuned model")
            return cls()
        return cls(recipe, tokenizer)

    def example(self, task: Task) -> Example:
        """One task, shown."""
        if self.recipe is None:
            return Example(_plain(task.messages), None, task.answer, list(task.metadata))
        prompt = seen(self.recipe, self.tokenizer, task)
        text = prompt.text or _plain(prompt.messages)
        return Example(text, len(prompt.ids) or None, task.answer, list(task.metadata))

    def lengths(self, tasks: Sequence[Task]) -> Lengths:
        """How long the prompts are."""
        places = np.unique(np.linspace(0, len(tasks) - 1, _MEASURED).astype(int))
        some = [tasks[place] for place in places]
        if self.tokenizer is None:
            sizes = [sum(len(message_text(one)) for one in task.messages) for task in some]
            return _lengths("characters", sizes, None)
        explorer = self.recipe.explorer
        room = explorer.engine.max_model_len - explorer.max_tokens
        return _lengths("tokens", [len(seen(self.recipe, self.tokenizer, one).ids) for one in some], room)


def _lengths(unit: str, sizes: Sequence[int], room: int | None) -> Lengths:
    p50, p90, p99 = (int(one) for one in np.percentile(sizes, [50, 90, 99], method="higher"))
    too_long = 0 if room is None else sum(size > room for size in sizes)
    return Lengths(unit, len(sizes), p50, p90, p99, max(sizes), room, too_long)


def _plain(messages: Sequence[Message]) -> str:
    return "\n".join(f"[{one['role']}] {message_text(one)}" for one in messages)
