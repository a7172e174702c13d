"""State that the vLLM engines of one process share: vLLM keeps it in module globals."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

ONE_AT_A_TIME = threading.RLock()
"""vLLM keeps its forward context in a module global, so two engines must not be stepped at the same time."""

_OPEN: set[int] = set()
"""The ids of the owners that `opened` and have not closed."""


def opened(owner: object) -> None:
    """Note that one more engine of this process is open."""
    _OPEN.add(id(owner))


def shut_down(owner: object, llm: LLMEngine) -> None:
    """Free one engine. vLLM's own shutdown ends what all engines share: only the last one uses it."""
    with ONE_AT_A_TIME:
        _OPEN.discard(id(owner))
        client = llm.engine_core
        if not _OPEN:
            client.shutdown()
            return
        client._finalizer.detach()
        client.engine_core.model_executor.shutdown()
        client.engine_core.scheduler.shutdown()
