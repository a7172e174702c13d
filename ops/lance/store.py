"""The store of an operator that reads stored rows: the attached one, else the one its argument names."""

from __future__ import annotations

from typing import Any

from ops.base import ArrowOperator
from rft_data.core.errors import OperatorError


def operator_store(op: ArrowOperator, name: str) -> Any:
    """The run's buffer, or the one at `op.buffer`, opened for reading when first asked for.

    Raises: OperatorError when there is neither; MissingFileError when there is no buffer at that place.
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
