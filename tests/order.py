"""Which test files begin: those with the longest tests, lest a worker be left alone with one.

`--dist worksteal` gives each worker a run of neighbours, and what one has not begun is taken from its end. So
the files of one lane begin in the first of two or four workers, those of the other in the second or third.
"""

from __future__ import annotations

import pytest

LANES = (
    (
        "tests/rft_data/run/test_ray_run.py",
        "tests/test_cluster.py",
        "tests/rft_data/run/test_online.py",
        "tests/trainers/ranks/test_ranks.py",
        "tests/trainers/ranks/test_sharded.py",
        "tests/rft_data/run/test_train_beside.py",
    ),
    (
        "tests/explorers/engines/test_vllm_served.py",
        "tests/trainers/ranks/test_launch.py",
        "tests/rft_data/run/test_offline_run.py",
        "tests/explorers/engines/test_openai_vllm_server.py",
        "tests/rft_data/run/test_overlapped_run.py",
    ),
)
"""Files with a test of over 30 s, in the order in which they begin; no two with a Ray cluster at a time."""
_ROUNDING = 4
"""A worker's share begins so many tests before or after the middle."""


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _lane(files: tuple[str, ...], items: list[pytest.Item]) -> list[pytest.Item]:
    found = [item for item in items if _file(item) in files]
    return sorted(found, key=lambda item: files.index(_file(item)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One lane goes to the front, one to the middle between two files; all others keep their order."""
    first, second = (_lane(files, items) for files in LANES)
    moved = {file for files in LANES for file in files}
    others = [item for item in items if _file(item) not in moved]
    middle = max(0, len(items) // 2 + _ROUNDING - len(first))
    while 0 < middle < len(others) and _file(others[middle]) == _file(others[middle - 1]):
        middle += 1
    items[:] = [*first, *others[:middle], *second, *others[middle:]]
