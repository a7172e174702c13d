"""A run's folder: which recipe may continue it, what is already done, and its buffer.

`buffer/`, `weights/`, `checkpoints/`, `stages/`, `recipe.json`, `progress.json`, `summary.json`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, cast

from explorers.sandbox.probe import Choice
from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.errors import MissingFileError, ResumeError
from rft_data.core.files import make_folder, write_text
from rft_data.core.filters import Compare
from rft_data.core.lookup import OWN_CODE
from rft_data.core.scratch import on_store
from rft_data.core.version import __version__
from rft_data.core.words import Mode, RunMilestone
from rft_data.placement.hub.access import HubAccess
from rft_data.recipe.extending import check_more_steps, same_but_longer
from rft_data.recipe.load import OWN_CODE_FILE
from rft_data.recipe.recipe import RunRecipe
from rft_data.recipe.stored import as_it_was_read
from rft_data.run.attached import attach
from rft_data.run.mirror import Mirror, run_folder
from rft_data.run.occupied import check_ended
from rft_data.run.record import RECIPE_FILE
from rft_data.run.status import stored_recipe
from rft_data.sampler import make_policy
from rft_data.sampler.ledger import Ledger
from rft_data.weights.versions import VersionRegistry

_FREE = ("deadlines.", "monitor.", "placement.")
"""Sections that may change when a run is continued: they do not touch what is computed."""
_LAST = (RunMilestone.RL, RunMilestone.FINAL)
"""Phases that a run does again when it goes on past its last step."""
_PROGRESS, _SUMMARY = "progress.json", "summary.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress and measurements of a run over all its starts: `progress.json`."""

    done: tuple[str, ...] = ()
    """Phases that are completed, and skipped when the run is continued."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall time by phase, over all starts."""
    heldout_accuracy: Mapping[str, float] = field(default_factory=dict)
    """Accuracy by the model that was measured: `start`, a stage's name, `final`."""
    by_difficulty: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Accuracy of each measured model by `taskset/difficulty`."""
    pass_at_k: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """pass@k of each measured model, where several answers to a task were sampled."""
    heldout_reward: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """Of each measured model: mean effective reward and its standard error (`reward`, `reward_error`)."""
    heldout_parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of each measured model: the mean of each reward component."""
    evaluations: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Figures measured during the online stage, by optimizer step."""
    best: Mapping[str, object] = field(default_factory=dict)
    """The best weights so far: their `step`, folder (`model`) and figures."""
    stages: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Report of each offline stage."""
    preferences: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Preference accuracy on held-out pairs, by the model that was measured."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Number of groups by what became of them, once the reinforcement stage is over."""
    rows: Mapping[str, object] = field(default_factory=dict)
    """Number of rows by what became of them, once the reinforcement stage is over."""


class Run:
    """An open run; owns its buffer until `close`."""

    def __init__(self, recipe: RunRecipe, *, take_over: bool = False) -> None:
        """Open the folder and the buffer, new or to be continued; nothing is recorded before `begin`.

        Args: take_over: also a run on an object store that is at work on another machine, which it ends.

        Raises: ResumeError when the folder holds a run of another recipe; BusyError when another
            process is running it; ResumeError when a file of it is damaged.
        """
        self._name = recipe.name
        self._saved = recipe.saved()
        self.directory = recipe.folder
        """The run's folder on this machine."""
        self._mirror: Mirror | None = None
        if on_store(recipe.run_dir):
            self._check_stored(recipe)
            if not take_over:
                check_ended(recipe.run_dir)
            self._mirror = Mirror(recipe.run_dir)
        try:
            self._open(recipe)
        except BaseException:
            self._let_go()
            raise

    def _check_stored(self, recipe: RunRecipe) -> None:
        """Refuse a run of another recipe before it is taken over: it may be at work on another machine.

        Raises: ResumeError.
        """
        with suppress(MissingFileError):
            self._check_same(stored_recipe(run_folder(recipe.run_dir)), recipe, recipe.run_dir)

    def _open(self, recipe: RunRecipe) -> None:
        if self._mirror is not None:  # fetching takes long, and the buffer is another owner's by then
            self._mirror.check_owner()
        self.run_id = recipe.run_id
        self.hash = content_id(self._saved)
        self.hub: HubAccess | None = None
        """The hub behind which the buffer is; None: this run owns it."""
        self.explored_elsewhere = recipe.buffer.is_hub and recipe.mode == Mode.TRAIN
        """Whether another process plays this run's groups."""
        self.sandbox: Choice | None = None
        """The place of the model's programs; None before it is known, and where none run."""
        self.buffer = self._opened(recipe)
        try:
            self.attempt, self._goes_on = self._start(recipe)
            self.progress = self._progress()
            self.summary: dict[str, object] | None = None if self._goes_on else self._read(_SUMMARY)
            self.versions = VersionRegistry(self.buffer, self.run_id, self.directory / "weights")
            sampler = recipe.leases_by
            max_uses = make_policy(sampler.use, sampler.args).max_uses
            self.ledger = self._ledger(max_uses)
        except BaseException:
            self.buffer.close()
            raise

    def _opened(self, recipe: RunRecipe) -> Buffer:
        if not recipe.buffer.is_hub:
            return Buffer(recipe.buffer.uri, durability=recipe.buffer.durability)
        client, token = attach(recipe.buffer.uri, recipe.name, owns=recipe.mode != Mode.TRAIN)
        self.hub = HubAccess(recipe.buffer.uri, token)
        return cast("Buffer", client)  # it has the methods that a run calls

    def _ledger(self, max_uses: int) -> Ledger:
        if isinstance(self.buffer, Buffer):
            return Ledger(self.buffer, self.run_id, self.attempt, max_uses=max_uses)
        return cast("Ledger", self.buffer.ledger(self.run_id, self.attempt, max_uses=max_uses))

    def note(self, **changes: Any) -> None:
        """Change fields of `progress`; they are written by `save`, and with the next completed phase."""
        self.progress = replace(self.progress, **changes)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall seconds of a `with` block to the phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            before = self.progress.seconds
            spent = before.get(phase, 0.0) + time.perf_counter() - began
            self.note(seconds={**before, phase: spent})

    def _start(self, recipe: RunRecipe) -> tuple[int, bool]:
        """How often this run was started before, and whether it goes on past the last step it had then."""
        before = self.buffer.read("runs", where=Compare("run_id", "eq", self._name)).to_pylist()
        stored = json.loads(before[-1]["recipe"]) if before else {}
        began, longer = self._check_same(stored, recipe, f"buffer {recipe.buffer.uri}")
        if longer is not began:
            check_more_steps(began, recipe)
        return len(before), longer is not began

    def _check_same(self, stored: Any, recipe: RunRecipe, home: str) -> tuple[Any, Any]:
        """The recipe that a run began with, and the same with more steps if it gets some; {}: none began.

        Args: home: what holds the run, for the error.

        Raises: ResumeError if this recipe cannot continue it.
        """
        began = as_it_was_read(stored)
        longer, now = same_but_longer(began, recipe), as_it_was_read(self._saved)
        if not stored or not _changed(longer, now):
            return began, longer
        raise ResumeError(
            "\n".join(
                [
                    f"{home} holds run '{stored.get('name')}' of another recipe; "
                    "these fields differ and must not change:",
                    *(f"  {line}" for line in _changed(began, now)),
                    "continue with the recipe it began with (its 'steps', or 'groups' in mode explore, "
                    "may grow), or start over with --fresh; to train on otherwise, start a run of "
                    f"another name from its weights (in {stored.get('run_dir', recipe.run_dir)}/weights).",
                ]
            )
        )

    def _read(self, name: str) -> Any:
        path = self.directory / name
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text())
        except ValueError as err:
            raise ResumeError(f"{path} is damaged ({err}); remove that file and resume.") from err

    def _progress(self) -> Progress:
        stored = self._read(_PROGRESS) or {}
        known = {name.name for name in fields(Progress)}
        found = {key: value for key, value in stored.items() if key in known}
        done = tuple(found.get("done", ()))
        if self._goes_on:
            done = tuple(phase for phase in done if phase not in _LAST)
        return Progress(**{**found, "done": done})

    def begin(self) -> None:
        """Record this start and its recipe; environment references stay references."""
        make_folder(self.directory)
        if self._goes_on:  # before the recipe: a start that is killed here ends the run as it was
            self.save()
            (self.directory / _SUMMARY).unlink(missing_ok=True)
        write_text(self.directory / RECIPE_FILE, json.dumps(self._saved, indent=1))
        if own_code := os.environ.get(OWN_CODE):
            write_text(self.directory / OWN_CODE_FILE, own_code)
        if self._mirror is not None:
            self._mirror.start()
        row = {
            "run_id": self._name,
            "recipe": self._saved,
            "recipe_hash": self.hash,
            "code_version": __version__,
            "attempt": self.attempt,
        }
        self.buffer.add_rows("runs", [row])

    def once(self, phase: str, act: Callable[[], None]) -> bool:
        """Do a phase unless an earlier start of this run completed it; returns whether it was done now."""
        new = phase not in self.progress.done
        if new:
            act()
            self.note(done=(*self.progress.done, phase))
        self.save()
        if new:
            self.keep()
        return new

    def keep(self) -> None:
        """Store what is complete, where the run's folder is on an object store.

        Raises: FencedError if another process has taken the run over; StalledError.
        """
        if self._mirror is not None:
            self._mirror.save()

    def save(self) -> None:
        """Write `progress.json`, in the order in which things were measured."""
        write_text(self.directory / _PROGRESS, json.dumps(asdict(self.progress), allow_nan=False))

    def finish(self, summary: dict[str, object]) -> None:
        """Write `summary.json`, which marks the run as complete."""
        self.summary = summary
        write_text(self.directory / _SUMMARY, json.dumps(summary, indent=1))
        self.keep()

    def close(self) -> None:
        """Close the buffer; idempotent."""
        try:
            self.buffer.close()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._mirror is not None:
            self._mirror.close()


def unlike(stored: Any, recipe: RunRecipe) -> list[str]:
    """Fields in which the saved recipe of a run differs so that `recipe` cannot continue it; [] if it can."""
    began = as_it_was_read(stored)
    return _changed(same_but_longer(began, recipe), as_it_was_read(recipe.saved()))


def _changed(before: object, after: object) -> list[str]:
    """The differences that a run cannot be continued with."""
    return [line for line in differences(before, after) if not line.startswith(_FREE)]


def differences(before: object, after: object, at: str = "") -> list[str]:
    """`field: old -> new` for every leaf that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(set(before) | set(after))
        return [
            line
            for key in keys
            for line in differences(before.get(key), after.get(key), f"{at}.{key}" if at else key)
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, f"{at}.{i}")]
    return [] if before == after else [f"{at}: {before!r} -> {after!r}"]
