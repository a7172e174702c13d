"""Limits of one program in a sandbox."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rft_data.core.errors import RecipeError


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The bounds of one program, with everything that it starts.

    Raises: RecipeError for a value that is no number above 0.
    """

    seconds: float = 5.0
    """Wall time; processor time is limited to the next whole second."""
    memory_mb: int = 256
    """Address space (MiB): of all its processes together with Landlock, of each one with bubblewrap."""
    processes: int = 8
    """At a time, itself included. Not enforced without a sandbox."""
    open_files: int = 64
    """Files that each process may have open."""
    disk_mb: int = 16
    """In its working folder (MiB), and the largest single file."""
    output_kb: int = 256
    """On stdout and on stderr, each (KiB)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = (int, float) if field.name == "seconds" else int
            if not isinstance(value, kinds) or isinstance(value, bool) or not 0 < value < 1e6:
                raise RecipeError(
                    f"the sandbox limit '{field.name}' is {value!r}; wanted a "
                    f"{'number' if field.name == 'seconds' else 'whole number'} above 0."
                )
