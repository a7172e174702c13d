"""Operator lists that people tried, and the results; the newest are kept while the page is served."""

from __future__ import annotations

import secrets
import textwrap
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from rft_data.core.errors import MissingFileError
from rft_data.core.scratch import check_has_files
from rft_data.core.words import Mode
from rft_data.recipe.yaml_text import as_text, parse_yaml
from rft_data.run.record import RECIPE_FILE
from rft_data.run.status import stored_run_id
from rft_data.run.trial.operator_text import KEY
from rft_data.web.child_work import ask
from rft_data.web.plot import Bars
from rft_data.web.subjects import Subjects

DEADLINE_S = 90.0
_KEPT = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request for a trial of operators."""

    text: str
    """Operators, as YAML."""
    where: str
    """A filter; only groups with a row that it lets through."""
    groups: int
    """The newest so many."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One list of operators, tried."""

    number: str
    key: str
    """Key of the subject."""
    wanted: Wanted
    found: Mapping[str, Any]
    """Result of `rft_data.run.trial.trial.tried`."""
    readmitted: Mapping[str, Any] | None = None
    """What `rft_data.run.trial.readmission.readmitted` returned, after it."""

    def bars(self) -> Iterator[Bars]:
        """Spreads before and after, of what has any values."""
        for name, spread in self.found["spreads"].items():
            if spread["edges"]:
                sides = {side: spread[side] for side in ("before", "after")}
                yield Bars(name, spread["edges"], sides)

    def spread(self, name: str) -> Bars:
        """Raises: MissingFileError where there are no such values."""
        for one in self.bars():
            if one.title == name:
                return one
        raise MissingFileError(f"this trial has no values of '{name}'.")


class Trials:
    """The newest trials of a page."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_number: OrderedDict[str, Trial] = OrderedDict()

    def run(self, subjects: Subjects, key: str, wanted: Wanted) -> Trial:
        """Try operators in a child process. Raises: what `ask` raises; MissingFileError without a buffer."""
        request = _request(subjects, key, wanted)
        found = ask("rft_data.run.trial.child", request, deadline_s=DEADLINE_S, what="the trial")
        trial = Trial(secrets.token_hex(6), key, wanted, found)
        self._keep(trial)
        return trial

    def readmit(self, subjects: Subjects, key: str, number: str) -> None:
        """Readmit what a trial would keep of the run's rejected groups, as a curator may.

        Raises: as `run`; MissingFileError for a trial that is not kept any more, or of a buffer alone.
        """
        trial, folder = self.find(key, number), subjects[key].run_dir
        if folder is None:
            raise MissingFileError(f"'{key}' is a buffer alone: it has no run that rejected groups.")
        request = {"trial": _request(subjects, key, trial.wanted), "run_dir": str(folder)}
        found = ask("rft_data.web.readmit_child", request, deadline_s=DEADLINE_S, what="the readmission")
        self._keep(replace(trial, readmitted=found))

    def _keep(self, trial: Trial) -> None:
        with self._lock:
            self._by_number[trial.number] = trial
            while len(self._by_number) > _KEPT:
                self._by_number.popitem(last=False)

    def find(self, key: str, number: str) -> Trial:
        """Raises: MissingFileError for a trial that is not kept any more."""
        with self._lock:
            found = self._by_number.get(number)
        if found is None or found.key != key:
            raise MissingFileError(f"this trial is not kept any more (the newest {_KEPT} are); try it again.")
        return found


def _request(subjects: Subjects, key: str, wanted: Wanted) -> dict[str, object]:
    folder, buffer = subjects[key].run_dir, subjects.buffer(key)
    check_has_files(buffer.location)
    return {
        "location": buffer.location,
        "recipe": None if folder is None else str(folder / RECIPE_FILE),
        "run_id": None if folder is None else stored_run_id(folder),
        "text": wanted.text,
        "where": wanted.where,
        "groups": wanted.groups,
    }


def as_recipe(trial: Trial, folder: Path, recipe: Mapping[str, Any]) -> str:
    """The text of a recipe that extends a run's with the operators of a trial, as they were written.

    Args: folder: of the run. recipe: the run's, as it was stored there.
    """
    first = trial.found["first"]
    beside = f"{recipe['run_dir']}-tried"
    lines = [
        f"# Operators tried on the newest {trial.found['groups']} groups of run {trial.key}:",
        f"# they would keep {first['kept']} of {first['rows']} rows. All else is as in that run's recipe.",
        f"extends: {as_text(str(folder.absolute() / RECIPE_FILE))}",
        f"name: {as_text(recipe['name'] + '-tried')}",
        f"run_dir: {as_text(beside)}",
    ]
    if recipe["mode"] != Mode.TRAIN:  # that one trains on the rows of the other run's buffer
        lines.append(f"buffer: {{uri: {as_text(beside + '/buffer')}}}")
    return "\n".join([*lines, "", _as_key(trial.wanted.text), ""])


def _as_key(text: str) -> str:
    """A list of operators under its key."""
    if isinstance(parse_yaml(text, "the operators"), dict):
        return text.rstrip()
    return f"{KEY}:\n{textwrap.indent(text.rstrip(), '  ')}"
