"""Label Studio: exports completions as its tasks, imports its annotations as feedback and preference pairs.

It reads and writes files only, and calls no server.
Formats: labelstud.io/guide/task_format; tags Rating, Pairwise, TextArea.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError, RowError
from rft_data.core.files import fsync
from rft_data.core.filters import Filter
from rft_data.core.json_types import Json, JsonObject
from rft_data.core.rows import Feedback, PreferencePair, now
from rft_data.core.words import FeedbackKey
from rft_data.exchange.annotate.subjects import (
    Subject,
    answer_text,
    as_text,
    comparisons,
    preference,
    ratings,
    stored_experiences,
    stored_ids,
)
from rft_data.exchange.feedback import brief, finite, json_rows, parse_time, storable

Kind: TypeAlias = Literal["rating", "pairwise"]
MAX_RATING = 5
_COMMENT = FeedbackKey.COMMENT
_PREFERENCE = "preference"
_ID, _LEFT_ID, _RIGHT_ID = "experience_id", "left_experience_id", "right_experience_id"

CONFIGS: Mapping[Kind, str] = {
    "rating": f"""\
<View>
  <Header value="Prompt"/>
  <Text name="prompt" value="$prompt"/>
  <Header value="Completion"/>
  <Text name="completion" value="$completion"/>
  <Rating name="{FeedbackKey.SCORE}" toName="completion" maxRating="{MAX_RATING}" required="true"/>
  <TextArea name="{_COMMENT}" toName="completion" rows="2" maxSubmissions="1" placeholder="Why (optional)"/>
</View>
""",
    "pairwise": f"""\
<View>
  <Header value="Prompt"/>
  <Text name="prompt" value="$prompt"/>
  <Header value="Which completion is better?"/>
  <Pairwise name="{_PREFERENCE}" toName="left,right"/>
  <View style="display: flex; gap: 1em">
    <View style="flex: 1"><Text name="left" value="$left"/></View>
    <View style="flex: 1"><Text name="right" value="$right"/></View>
  </View>
</View>
""",
}
"""Labeling configurations to paste into the settings of a Label Studio project."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The files of one export."""

    tasks_file: str
    config_file: str
    tasks: int


@dataclass(frozen=True, slots=True)
class Imported:
    """Counts of the feedback that an import stored."""

    tasks: int
    annotations: int
    """Annotations that were completed."""
    feedback_new: int
    preferences_new: int
    skipped: Mapping[str, int]
    """Annotations and results that were not stored, by reason."""

    def as_json(self) -> dict[str, object]:
        """The fields as plain values, for JSON."""
        return asdict(self)


def export_tasks(
    buffer: Buffer,
    target: Path,
    kind: Kind,
    *,
    run_id: str | None = None,
    where: Filter | None = None,
    limit: int | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write tasks for Label Studio to `target` (.json) and the labeling configuration beside it (.xml).

    Each task's data has the rewards too; the configuration does not show them to the annotator.
    Raises: RowError for another suffix; ConflictError if one of the files exists and not `overwrite`.
    """
    if target.suffix != ".json":
        raise RowError(
            f"{target} does not end in .json, which Label Studio imports; name for example tasks.json."
        )
    config = target.with_suffix(".xml")
    for file in (target, config):
        if file.exists() and not overwrite:
            raise ConflictError(f"{file} exists already; give --overwrite to replace it.")
    subjects = (ratings if kind == "rating" else comparisons)(buffer, run_id, where)
    draft = target.with_name(f".{target.name}.draft")
    count = 0
    with draft.open("w", encoding="utf-8") as out:
        out.write("[")
        for count, subject in enumerate(islice(subjects, limit), 1):
            out.write(("" if count == 1 else ",") + "\n" + json.dumps(_task(subject), ensure_ascii=False))
        out.write("\n]\n")
    fsync(draft)
    config.write_text(CONFIGS[kind], encoding="utf-8")
    draft.rename(target)
    return Exported(str(target), str(config), count)


def _task(subject: Subject) -> JsonObject:
    left, right = subject.left, subject.right
    data: dict[str, Json] = {"prompt": as_text(subject.prompt), "group_id": left.group_id}
    if right is None:
        data |= {"completion": answer_text(left), _ID: left.experience_id, "reward": left.reward}
    else:
        for side, row in (("left", left), ("right", right)):
            data |= {side: answer_text(row), f"{side}_{_ID}": row.experience_id, f"{side}_reward": row.reward}
    return {"data": data}


def import_annotations(buffer: Buffer, path: Path) -> Imported:
    """Store the annotations in a file that Label Studio exported as JSON (not JSON-MIN).

    A rating becomes feedback under the name of its tag (`score`), a text area likewise (`comment`), a choice
    between two a preference pair of source `human`. Cancelled annotations are left out. Importing again
    stores nothing twice; a rating changed since, also to an earlier value, is newer feedback.
    Raises: RowError naming file and line if the file is no such export; nothing is stored then.
    """
    read = _Read()
    for found in json_rows(path):
        if found.row is None:
            raise RowError(
                f"{found.place}: {found.reason}; wanted a task as Label Studio exports it (JSON). "
                "Nothing is stored."
            )
        annotations, data = found.row.get("annotations"), found.row.get("data")
        if not isinstance(annotations, list) or not isinstance(data, dict):
            raise RowError(
                f"{found.place}: a task without 'data' and 'annotations'; export the project as JSON, which "
                "keeps them (JSON-MIN and CSV do not). Nothing is stored."
            )
        try:
            read.task(annotations, data)
        except RowError as err:
            raise RowError(f"{found.place}: {err}. Nothing is stored.") from err
    stored = stored_ids(buffer, sorted({item.experience_id for item in read.feedback}))
    feedback = [item for item in read.feedback if item.experience_id in stored]
    read.skipped[_NOT_STORED] += len(read.feedback) - len(feedback)
    new = buffer.add_feedback(feedback) if feedback else 0
    pairs = 0
    for start in range(0, len(read.choices), _TOGETHER):
        pairs += buffer.add_preferences(_pairs(buffer, read.choices[start : start + _TOGETHER], read.skipped))
    return Imported(read.tasks, read.annotations, new, pairs, dict(+read.skipped))


_NOT_STORED = "about an experience that is not stored here"
_TOGETHER = 256


@dataclass(frozen=True, slots=True)
class _Choice:
    """One completion was preferred to another."""

    chosen: str
    rejected: str
    author: str
    at: datetime | None


class _Read:
    """Collects the annotations of the tasks of a file."""

    def __init__(self) -> None:
        self.tasks = 0
        self.annotations = 0
        self.feedback: list[Feedback] = []
        self.choices: list[_Choice] = []
        self.skipped: Counter[str] = Counter()

    def task(self, annotations: Sequence[object], data: Mapping[str, object]) -> None:
        """Add the annotations of one task; `data` holds the ids that its export wrote."""
        self.tasks += 1
        for annotation in annotations:
            if not isinstance(annotation, dict) or not isinstance(annotation.get("result"), list):
                self.skipped["an annotation without results"] += 1
            elif annotation.get("was_cancelled"):
                self.skipped["cancelled by its author"] += 1
            else:
                self.annotations += 1
                author, at = _author(annotation), _time(annotation)
                for result in annotation["result"]:
                    self._result(result, data, author, at)

    def _result(self, result: object, data: Mapping[str, object], author: str, at: datetime | None) -> None:
        fields = result if isinstance(result, dict) else {}
        kind, value, experience_id = fields.get("type"), fields.get("value"), data.get(_ID)
        if kind not in ("rating", "textarea", "pairwise") or not isinstance(value, dict):
            self.skipped[f"a result of type {brief(kind)}"] += 1
        elif kind == "pairwise":
            self._choice(value.get("selected"), data, author, at)
        elif not isinstance(experience_id, str):
            self.skipped[f"its task has no '{_ID}'"] += 1
        else:
            number, text = _number(value.get("rating")), _text(value.get("text"))
            if (kind == "rating" and number is None) or (kind == "textarea" and not text):
                self.skipped[f"a {kind} without a value"] += 1
                return
            key = str(
                fields.get("from_name") or (FeedbackKey.SCORE if kind == "rating" else FeedbackKey.COMMENT)
            )
            score, words = (number, None) if kind == "rating" else (None, text)
            name = storable(experience_id, f"'{_ID}'")
            self.feedback.append(Feedback(name, author, storable(key, "'from_name'"), score, words, at))

    def _choice(self, selected: object, data: Mapping[str, object], author: str, at: datetime | None) -> None:
        sides = {"left": (_LEFT_ID, _RIGHT_ID), "right": (_RIGHT_ID, _LEFT_ID)}
        if not isinstance(selected, str) or selected not in sides:
            self.skipped[f"a choice of {brief(selected)}, which is neither 'left' nor 'right'"] += 1
            return
        chosen, rejected = (data.get(name) for name in sides[selected])
        if not isinstance(chosen, str) or not isinstance(rejected, str):
            self.skipped[f"its task has no '{_LEFT_ID}' and '{_RIGHT_ID}'"] += 1
            return
        for name in (chosen, rejected):
            storable(name, "an experience id")
        self.choices.append(_Choice(chosen, rejected, author, at))


def _pairs(buffer: Buffer, choices: Sequence[_Choice], skipped: Counter[str]) -> list[PreferencePair]:
    rows = stored_experiences(
        buffer, sorted({name for one in choices for name in (one.chosen, one.rejected)})
    )
    pairs = []
    for choice in choices:
        if choice.chosen not in rows or choice.rejected not in rows:
            skipped[_NOT_STORED] += 1
            continue
        pair = preference(rows[choice.chosen], rows[choice.rejected], choice.author)
        if pair is None:
            skipped["a choice between two that are no pair (other prompts, or the same words)"] += 1
        else:
            pairs.append(replace(pair, created_at=choice.at or now()))
    return pairs


def _author(annotation: Mapping[str, object]) -> str:
    """The annotator: `completed_by` is a number, or an object with an e-mail address."""
    who = annotation.get("completed_by")
    if isinstance(who, dict):
        who = who.get("email") or who.get("id")
    if isinstance(who, str) and who:
        return storable(who, "'completed_by'")
    return storable(f"label-studio:{'unknown' if who is None else who}", "'completed_by'")


def _time(annotation: Mapping[str, object]) -> datetime | None:
    stamp = annotation.get("updated_at") or annotation.get("created_at")
    return None if stamp is None else parse_time(stamp)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return finite(value, "a rating")


def _text(value: object) -> str:
    parts = value if isinstance(value, list) else [value]
    return storable("\n".join(part for part in parts if isinstance(part, str) and part), "a text")
