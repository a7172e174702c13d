"""Prompts as the model of a recipe will see them, and how long they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rft_data.core.chat import message_text
from rft_data.core.errors import RftError
from rft_data.core.rows import Task
from rft_data.recipe.recipe import Recipe
from rft_data.run.data_check.report import Example, Lengths, TasksetReport
from rft_data.run.debug.chosen import explored, recipe_tokenizer
from rft_data.run.debug.first_prompts import FirstPrompts
from rft_data.run.image_checks import check_recipe_images, first_with_images

if TYPE_CHECKING:
    from rft_data.core.rows import Message

One = TypeVar("One")
_MEASURED = 2000
"""Tasks of a taskset that are measured."""


@dataclass(frozen=True, slots=True)
class PromptView:
    """Shows prompts, rendered where there is a recipe whose model has a chat template."""

    recipe: Any = None
    prompts: FirstPrompts | None = None

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
        return cls(recipe, FirstPrompts(explored(recipe), tokenizer))

    def close(self) -> None:
        """End the worlds that were played."""
        if self.prompts is not None:
            self.prompts.close()

    def show(self, tasks: Sequence[Task], shown: int, report: TasksetReport) -> None:
        """Put lengths and the first examples of a taskset into its report, and why the model gets none."""
        view = self
        try:
            if self.recipe is None:
                first_with_images(tasks)
            else:
                check_recipe_images(tasks, self.recipe)
            report.lengths = self.lengths(tasks)
        except RftError as err:
            (report.warnings if self.recipe is None else report.problems).append(str(err))
            view = PromptView()
            report.lengths = view.lengths(tasks)
        report.examples = [view.example(task) for task in tasks[:shown]]

    def example(self, task: Task) -> Example:
        """One task, shown."""
        if self.prompts is None:
            return Example(_plain(task.messages, task.tools), None, task.answer, list(task.metadata))
        prompt = self.prompts.prompt(task)
        text = prompt.text or _plain(prompt.messages, prompt.tools)
        return Example(text, len(prompt.ids) or None, task.answer, list(task.metadata))

    def lengths(self, tasks: Sequence[Task]) -> Lengths:
        """How long the prompts are."""
        explorer = None if self.prompts is None else self.recipe.explorer
        if self.prompts is None or explorer is None or explorer.base_url:
            sizes = [sum(len(message_text(one)) for one in task.messages) for task in spread(tasks)]
            return measured("characters", sizes, None)
        sizes = [len(self.prompts.prompt(one).ids) for one in self.prompts.some(spread(tasks))]
        return measured("tokens", sizes, explorer.engine.max_model_len - explorer.max_tokens)


def spread(some: Sequence[One]) -> list[One]:
    """At most so many as are measured, evenly chosen."""
    return (
        [some[place] for place in np.unique(np.linspace(0, len(some) - 1, _MEASURED).astype(int))]
        if some
        else []
    )


def measured(unit: str, sizes: Sequence[int], room: int | None) -> Lengths:
    """Percentiles of sizes. `room`: the largest that is not too long; None: none is."""
    p50, p90, p99 = (int(one) for one in np.percentile(sizes, [50, 90, 99], method="higher"))
    too_long = 0 if room is None else sum(size > room for size in sizes)
    return Lengths(unit, len(sizes), p50, p90, p99, max(sizes), room, too_long)


def _plain(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> str:
    """Messages as text, with the names of the tools that are offered before them."""
    named = ", ".join(str(tool.get("function", tool).get("name")) for tool in tools or ())
    lines = [f"[{one['role']}] {_text(one)}" for one in messages]
    return "\n".join([f"[tools] {named}", *lines] if named else lines)


def _text(message: Message) -> str:
    """The text of a message; a part that is none is its kind: `[image]`."""
    content = message["content"]
    if not isinstance(content, list | tuple):
        return message_text(message)
    return "".join(
        str(part.get("text", "")) if part.get("type") == "text" else _part(str(part.get("type")))
        for part in content
    )


def _part(kind: str) -> str:
    return f"[{kind.removesuffix('_url')}]"
