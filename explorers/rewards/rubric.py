"""The reward `rubric`: weighted criteria that judges grade one by one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NotRequired, TypedDict

from explorers.rewards.judge_panel import JudgePanel, agreement, usable
from rft_data.core.lookup import need
from rft_data.core.rows import Task
from rft_data.core.workflow import Unscored

_HIGH = 10.0
_TEMPLATE = """You grade an answer by criteria. Grade each criterion on its own.

[Task]
{prompt}
REFERENCE
[Answer]
{completion}

[Criteria]
CRITERIA

Reply with one JSON object that has, under the name of each criterion, a number from 0 (not met) to 10 (met):
FORM"""
_REFERENCE = "\n[Reference answer]\n{answer}\n"


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of a rubric."""

    name: str
    text: str
    weight: float = 1.0
    """Below 0: what the answer should not do."""


class CriterionSettings(TypedDict):
    """A criterion as a recipe or a task writes it."""

    name: str
    text: str
    weight: NotRequired[float]


class Rubric:
    """sum(weight * grade) / sum(positive weights), grades scaled to [0, 1] and averaged over the judges.

    Parts: each criterion's grade, and `agreement` where there are several judges.
    """

    deadline_s = 120.0

    def __init__(
        self,
        judges: Sequence[Mapping[str, object]],
        criteria: Sequence[CriterionSettings] | None = None,
        metadata: str = "rubric",
        sampling: Mapping[str, object] | None = None,
        limits: Mapping[str, object] | None = None,
        cache: str | None = None,
        deadline_s: float = 120.0,
    ) -> None:
        """Nothing is asked yet.

        Args:
            judges, sampling, limits, cache: as `JudgePanel` takes them.
            criteria: `{"name", "text", "weight": 1.0}` each; None: each task has its own under the key
                `metadata` of its metadata. deadline_s: for one completion.
        Raises: ValueError for criteria that cannot be graded.
        """
        self._criteria = None if criteria is None else read_criteria(criteria)
        self._key = metadata
        self._panel = JudgePanel(judges, sampling=sampling, limits=limits, cache=cache)
        self._prompts = need("ops.judge.judge_prompts", "ops", "a judge's reward")
        self._objects = need("ops.judge.judge_scores", "ops", "a judge's reward").json_objects
        self.deadline_s = deadline_s

    async def __call__(self, task: Task, completion: str) -> Mapping[str, float] | Unscored:
        """Unscored when the task has no criteria; as a judge's failure when half of them or more fail."""
        criteria = self._criteria
        if criteria is None:
            try:
                criteria = read_criteria(task.metadata.get(self._key, ()))
            except (ValueError, TypeError) as err:
                return Unscored(f"the task's metadata has no rubric under '{self._key}': {err}")
        prompt = self._prompt(task, completion, criteria)
        readings = await self._panel.ask([(prompt, partial(self._read, criteria))])
        graded = usable(readings)
        if isinstance(graded, Unscored):
            return graded
        grades = {one.name: [grade[one.name] for grade in graded] for one in criteria}
        means = {name: statistics.fmean(values) for name, values in grades.items()}
        total = sum(one.weight * means[one.name] for one in criteria)
        value = total / sum(max(one.weight, 0.0) for one in criteria)
        near = {"agreement": statistics.fmean(map(agreement, grades.values()))} if len(readings) > 1 else {}
        return {**means, **near, "reward": value}

    def _prompt(self, task: Task, completion: str, criteria: Sequence[Criterion]) -> str:
        form = "{" + ", ".join(f'"{one.name}": <number>' for one in criteria) + "}"
        template = _TEMPLATE.replace("REFERENCE", _REFERENCE if task.answer is not None else "")
        lines = "\n".join(f"- {one.name}: {one.text}" for one in criteria)
        maker = self._prompts.PromptMaker(template.replace("CRITERIA", lines).replace("FORM", form))
        prompt = self._prompts.spoken(task.messages)
        filled: str = maker.filled({"prompt": prompt, "completion": completion, "answer": task.answer or ""})
        return filled

    def _read(self, criteria: Sequence[Criterion], text: str) -> dict[str, float] | str:
        """The grades of the last JSON object that has all of them, or why there are none."""
        found: dict[str, float] | str = f"the reply grades not every criterion: {text[-120:]!r}"
        for one in self._objects(text):
            grades = [one.get(criterion.name) for criterion in criteria]
            if all(isinstance(grade, int | float) and 0 <= grade <= _HIGH for grade in grades):
                pairs = zip(criteria, grades, strict=True)
                found = {criterion.name: float(grade) / _HIGH for criterion, grade in pairs}
        return found


def read_criteria(given: Sequence[CriterionSettings]) -> list[Criterion]:
    """Criteria as a recipe or a task writes them.

    Raises: ValueError for none, two of one name, a name that is a part of the reward, or no positive weight;
        TypeError for other keys.
    """
    criteria = [Criterion(**one) for one in given]
    names = [one.name for one in criteria]
    if not names or len(set(names)) < len(names) or {"reward", "agreement"} & set(names):
        raise ValueError(
            f"criteria are named {names}; wanted one or more, each once, none 'reward' or 'agreement'"
        )
    if not any(one.weight > 0 for one in criteria):
        raise ValueError("no criterion has a weight above 0")
    return criteria
