"""Messages between a run and its stage while it trains, in small files beside the stage's folder.

The stage says how far it is, for its progress and for trackers; the run may ask it to stop. Where the stage
trains on another machine there are none: no count is shown, trackers are shown its numbers when it is done,
and it trains to its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from os import SEEK_END
from pathlib import Path

Steps = tuple[int, int]
"""Those taken, and all."""
Numbers = list[dict[str, float]]
"""Numbers of optimizer steps, each with its `step`, from 1."""


def note_steps(stage: Path, taken: int, of: int) -> None:
    """Write the count down; a disk that refuses it ends no training."""
    with suppress(OSError):
        _file(stage).write_text(f"{taken} {of}")


def steps_taken(stage: Path) -> Steps | None:
    """The count of a stage by its folder; None where there is none now."""
    try:
        taken, of = _file(stage).read_text().split()
        return int(taken), int(of)
    except (OSError, ValueError):  # ValueError: it is being written
        return None


def note_numbers(stage: Path, numbers: Mapping[str, float]) -> None:
    """Add the numbers of a step; a disk that refuses them ends no training."""
    with suppress(OSError), _log(stage).open("a") as file:
        file.write(json.dumps(numbers) + "\n")


def numbers_since(stage: Path, place: int) -> tuple[Numbers, int]:
    """The numbers written since `place`, and the place after them."""
    try:
        with _log(stage).open("rb") as file:
            if file.seek(0, SEEK_END) < place:  # the stage began anew
                place = 0
            file.seek(place)
            whole, end, _ = file.read().rpartition(b"\n")  # a line may be half written
    except OSError:
        return [], place
    return [json.loads(line) for line in whole.splitlines()], place + len(whole) + len(end)


def ask_to_stop(stage: Path) -> None:
    """Ask a stage, by its folder, to end at a checkpoint after the step it is at. Raises: OSError."""
    request = _request(stage)
    request.parent.mkdir(parents=True, exist_ok=True)  # the stage may not have begun
    request.touch()


def asked_to_stop(stage: Path) -> bool:
    """Whether it was asked to."""
    return _request(stage).exists()


def forget_steps(stage: Path) -> None:
    """Remove count, numbers and request: the stage is trained, or begins."""
    for file in (_file(stage), _log(stage), _request(stage)):
        with suppress(OSError):
            file.unlink()


def _file(stage: Path) -> Path:
    return stage.with_suffix(".steps")  # of its folder of checkpoints it is the same


def _log(stage: Path) -> Path:
    return stage.with_suffix(".numbers")


def _request(stage: Path) -> Path:
    return stage.with_suffix(".stop")
