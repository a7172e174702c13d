"""One Ray at a time in a process of tests: what a test needs is started, what another left is ended.

Fixtures of two modules may overlap in a worker, because tests move between workers after their neighbours
were asked who comes next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from tests.ray_workers import forked_workers

_started: list[dict[str, Any]] = []
"""The settings of each Ray that was started here, in order."""


def ray_of(**settings: Any) -> ModuleType:
    """Ray on this machine with these settings; one that runs with the same is taken as it is."""
    ray: ModuleType = pytest.importorskip("ray")
    if not (ray.is_initialized() and _started[-1:] == [settings]):
        ray.shutdown()
        with forked_workers():
            ray.init(address="local", include_dashboard=False, **settings)
        _started.append(settings)
    return ray


@contextmanager
def ray_for(**settings: Any) -> Iterator[ModuleType]:
    """The same, ended after the block unless another test has ended it before."""
    ray = ray_of(**settings)
    mine = len(_started)
    yield ray
    if mine == len(_started):
        ray.shutdown()
