"""Reading beside an owner that rewrites files meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from rft_data.core.errors import RftError

T = TypeVar("T")
_TRIES, _PAUSE_S = 5, 0.3


def patiently(look: Callable[[], T]) -> T:
    """Look again when the owner rewrote a file while it was being read."""
    for _ in range(_TRIES - 1):
        try:
            return look()
        except RftError:
            raise
        except (OSError, RuntimeError, ValueError):
            time.sleep(_PAUSE_S)
    return look()
