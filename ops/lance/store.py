"""The buffer that an operator reads: the attached one, else the one that its argument `buffer` names."""

from __future__ import annotations

from typing import Any

from ops.base import ArrowOperator
from rft_data.core.errors import OperatorError


def operator_store(op: ArrowOperator, name: str) -> Any:
    """The run's buffer, else the one at `op.buffer`, which the first call opens for reading.

    Raises: OperatorError when there is neither; MissingFileError when `op.buffer` is no buffer.
    """
    if op.store is None:
        if op.buffer is None:
            raise OperatorError(
                f"operator '{name}' reads stored rows and has no store: a run attaches its buffer, "
                f"elsewhere (dj-process) name its folder: {name}: {{buffer: URI}}."
            )
        from rft_data.buffer import Buffer

        op.attach(Buffer(op.buffer, read_only=True))
    return op.store
