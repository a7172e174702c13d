"""The reward `reasoning_gym`: the score that a dataset of reasoning-gym gives an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from explorers.rewards.final_answer import final_answer
from rft_data.core.errors import UnknownComponentError
from rft_data.core.lookup import need, suggest
from rft_data.core.rows import Task
from rft_data.core.workflow import Unscored

_SOURCE = "source_dataset"
_NO_ANSWER = (None, "None")
"""Answers of datasets that give none; the second is what a taskset makes of the first."""
Scorer = Callable[[str, Mapping[str, object]], float]


class ReasoningGymScore:
    """The package's own score in [0, 1] of the final answer; some datasets give part of it to wrong answers.

    The taskset keeps what the scorer reads: `metadata: [numbers, target]` for countdown, for example.
    """

    def __init__(self, dataset: str | None = None, marker: str | None = None) -> None:
        """Find the scorer.

        Args: dataset: its name; None: each task has it as `source_dataset` of its metadata. marker: as in
            `final_answer`.
        Raises: MissingExtraError without reasoning-gym; UnknownComponentError for a dataset it does not have.
        """
        self._gym = need("reasoning_gym", "train", "the reward reasoning_gym")
        self._known = need("reasoning_gym.factory", "train", "the reward reasoning_gym").DATASETS
        self._dataset, self._marker = dataset, marker
        self._scorers: dict[str, Scorer] = {}
        if dataset is not None:
            if dataset not in self._known:
                raise UnknownComponentError(
                    f"reasoning_gym has no dataset '{dataset}';{suggest(dataset, self._known)}"
                )
            self._scorer(dataset)

    def __call__(self, task: Task, completion: str) -> float | Unscored:
        """Unscored when the task lacks what the scorer reads."""
        name = self._dataset or str(task.metadata.get(_SOURCE))
        if name not in self._known:
            return Unscored(f"the task's metadata has no '{_SOURCE}' that reasoning-gym knows: {name!r}")
        entry = {
            "question": str(task.messages[-1]["content"]) if task.messages else "",
            "answer": task.answer,
            "metadata": {_SOURCE: name, **task.metadata},
        }
        score = self._scorer(name)
        try:
            found = float(score(final_answer(completion, self._marker), entry))
            known = found >= 1.0 or task.answer in _NO_ANSWER or float(score(task.answer, entry)) > found
        except KeyError:
            known = False
        if known:
            return found
        return Unscored(  # most scorers catch their own errors, and would score every answer low
            f"the scorer of '{name}' does not know the task's own answer as right; name the fields of the "
            "metadata that it reads in the taskset's 'metadata'"
        )

    def _scorer(self, name: str) -> Scorer:
        if name not in self._scorers:
            self._scorers[name] = self._gym.get_score_answer_fn(name)
        return self._scorers[name]
