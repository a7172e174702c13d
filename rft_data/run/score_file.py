"""Scores rollouts that other programs made, and stores them as experiences of source `import`."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from explorers.limits import Limits
from explorers.rewards.scoring import make_rewards
from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.rows import Experience, Task, experience_id_of
from rft_data.core.words import RowSource
from rft_data.recipe.modes import DataRecipe
from rft_data.recipe.tasksets import Rollouts
from rft_data.run.taskset_rows import table_rows
from rft_data.tasks.columns import pick, prompt_messages

_BATCH = 512


@dataclass(frozen=True, slots=True)
class Found:
    """One completion of the source, and the task it answers."""

    place: str
    """The place of its row in the file, for messages."""
    task: Task
    text: str
    author: str
    member: int
    label: bool | None


class Scorer:
    """The reward of a data recipe, to be closed after use."""

    def __init__(self, recipe: DataRecipe) -> None:
        """The reward is part of an experience's id: other components or weights make other rows."""
        components = [section.model_dump() for section in recipe.reward]
        self._rewards = make_rewards(components, Limits())
        self._run_id = recipe.name
        self._reward_hash = content_id(components)[:8]
        self._correct = 0.5 * sum(section.weight for section in recipe.reward)

    def close(self) -> None:
        """End the reward's processes."""
        self._rewards.close()

    def score_file(self, section: Rollouts, tasks: Sequence[Task], buffer: Buffer) -> dict[str, object]:
        """Store a file's rollouts, scored; where it has labels, compare.

        A rollout belongs to the task of `section.taskset` with the same prompt; one whose task is not
        there (never read, or dropped) is counted as `no_task` and not stored. Reward >= 0.5 of the total
        weight is read as "correct".
        """
        outcome: Counter[str] = Counter()
        disagreements: list[dict[str, object]] = []
        completions = task_completions(section, tasks, outcome)
        while batch := list(islice(completions, _BATCH)):
            columns = self._rewards.score_all([(found.task, found.text) for found in batch])
            rows = [self._experience(found, scored) for found, scored in zip(batch, columns, strict=True)]
            for found, row in zip(batch, rows, strict=True):
                outcome["unscored" if row.reward is None else "scored"] += 1
                if found.label is None:
                    continue
                agrees = row.reward is not None and (row.reward >= self._correct) == found.label
                outcome["agree" if agrees else "disagree"] += 1
                if not agrees:
                    disagreements.append(_disagreement(row, found.place, found.label))
            done = buffer.append(rows)
            outcome["stored"] += done.stored
            outcome["quarantined"] += done.quarantined
        compared = outcome["agree"] + outcome["disagree"]
        counted = ("scored", "unscored", "no_task", "stored", "quarantined", "agree", "disagree")
        return {
            "name": section.name,
            **{key: outcome[key] for key in counted},
            "agreement": outcome["agree"] / compared if compared else None,
            "disagreements": disagreements,
        }

    def _experience(self, found: Found, scored: Mapping[str, Any]) -> Experience:
        task = found.task
        group_id = f"{self._run_id}/import-{self._reward_hash}-{task.task_id}"
        return Experience(
            experience_id=experience_id_of(self._run_id, task.key, 0, group_id, found.member),
            source=RowSource.IMPORT,
            run_id=self._run_id,
            taskset=task.taskset,
            task_id=task.task_id,
            group_id=group_id,
            member=found.member,
            explorer_id=found.author,
            messages=(*task.messages, {"role": "assistant", "content": found.text}),
            prompt_messages=len(task.messages),
            completion_text=found.text,
            **scored,
        )


def task_completions(section: Rollouts, tasks: Sequence[Task], outcome: Counter[str]) -> Iterator[Found]:
    """Every completion of the source that answers a task; `outcome` counts those of none as `no_task`.

    Raises: RowError for a row without one of the fields.
    """
    # operators may have normalised the tasks' prompts, so spaces do not count
    by_prompt = {
        _plain(task.messages[-1]["content"]): task for task in tasks if task.taskset == section.taskset
    }
    members: Counter[str] = Counter()
    for where, row in table_rows(section.source):
        asked = prompt_messages(pick(row, section.prompt, where), f"{where}: field '{section.prompt}'")
        task = by_prompt.get(_plain(asked[-1]["content"]))
        if task is None:
            outcome["no_task"] += len(section.completions)
            continue
        for column in section.completions:
            label = None if column.label is None else bool(pick(row, column.label, where))
            member = members[task.task_id]
            members[task.task_id] += 1
            yield Found(where, task, str(pick(row, column.text, where)), column.name, member, label)


def _plain(prompt: object) -> str:
    return " ".join(unicodedata.normalize("NFC", str(prompt)).split())


def _disagreement(experience: Experience, place: str, label: bool) -> dict[str, object]:
    return {
        "experience_id": experience.experience_id,
        "place": place,
        "completion": experience.explorer_id,
        "label": label,
        "reward": experience.reward,
        "unscored": experience.unscored_reason,
        "ends": experience.completion_text[-60:],
    }
