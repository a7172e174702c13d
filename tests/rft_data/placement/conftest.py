"""The toy role on the path of every process, and placements that are closed in the end."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rft_data.core.roles import Role, RoleSpec
from tests.rays import ray_for

HERE = Path(__file__).parent


def spec(name: str = "toy", factory: str = "toy", **arguments: object) -> RoleSpec:
    """A role of `toy.py`."""
    return RoleSpec(name, f"toy:{factory}", arguments, cpus=0.5)


def wait_for(condition: Callable[[], bool], within_s: float) -> None:
    """Wait until it holds, or fail."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {within_s} s"
        time.sleep(0.05)


@pytest.fixture(scope="package", autouse=True)
def toys() -> Iterator[None]:
    """`import toy` works here and, since children get our path, there."""
    sys.path.insert(0, str(HERE))
    yield
    sys.path.remove(str(HERE))


@pytest.fixture(scope="package")
def cluster() -> Iterator[None]:
    """A Ray cluster of two CPUs."""
    with ray_for(num_cpus=2, object_store_memory=256 << 20):
        yield


@pytest.fixture
def toy(started: Role) -> Role:
    """A live role, the module's own `started`; a test before may have killed it."""
    if started.call("pid", int, deadline_s=30).exception() is not None:
        started.restart().result()
    return started


def pid_of(role: Role) -> int:
    """The process of a toy role."""
    return int(role.call("pid", int, deadline_s=30).result())
