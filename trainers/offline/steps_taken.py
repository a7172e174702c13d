"""How many steps a stage has taken: a small file beside its folder while it trains, to show its progress.

The run reads it where the stage trains on the run's machine; elsewhere there is none, and no count is shown.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

Steps = tuple[int, int]
"""Those taken, and all."""


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


def forget_steps(stage: Path) -> None:
    """Remove the count: the stage is trained, or begins."""
    with suppress(OSError):
        _file(stage).unlink()


def _file(stage: Path) -> Path:
    return stage.with_suffix(".steps")  # of its folder of checkpoints it is the same
