"""Orders of the driver to a child."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rft_data.buffer.durability import Durability


@dataclass(frozen=True, slots=True)
class Orders:
    """Work of one child."""

    root: Path
    attempt: int
    """How often the run was started before."""
    seed: int
    durability: Durability = "process"
    hub: tuple[str, str] | None = None
    """Address and token of the hub that owns the buffer; None: this process owns it."""
    finish: bool = False
    """End in peace at the checkpoint after next, and check the books."""
