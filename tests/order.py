"""Which test files begin: those with the longest tests, lest a worker be left alone with one."""

from __future__ import annotations

import pytest

FIRST = (
    "tests/rft_data/run/test_ray_run.py",
    "tests/explorers/engines/test_vllm_served.py",
    "tests/rft_data/run/test_online.py",
    "tests/trainers/ranks/test_launch.py",
    "tests/trainers/ranks/test_ranks.py",
    "tests/trainers/ranks/test_sharded.py",
    "tests/rft_data/run/test_offline_run.py",
    "tests/explorers/engines/test_openai_vllm_server.py",
    "tests/rft_data/run/test_train_beside.py",
    "tests/rft_data/run/test_overlapped_run.py",
)
"""Files with a test of over 30 s, in the order in which they begin. The others follow as they were."""


def _rank(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0]
    return FIRST.index(file) if file in FIRST else len(FIRST)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first worker begins with these files; of what it has not begun, idle workers take from the end."""
    items.sort(key=_rank)
