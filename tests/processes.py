"""The processes that a test started, and whether they are still there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from rft_data.core.children import Child


@contextmanager
def children_of(module: str) -> Iterator[list[int]]:
    """The ids of the children that run a module and were started in this block.

    The children of this process are more: other tests left some, and threads of theirs start others.
    """
    started: list[int] = []
    real: Callable[..., None] = Child.__init__

    def begin(child: Child, runs: str, *arguments: object, **settings: object) -> None:
        real(child, runs, *arguments, **settings)
        if runs == module:
            started.append(child.pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Child, "__init__", begin)
        yield started


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        status: str = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status != psutil.STATUS_ZOMBIE
