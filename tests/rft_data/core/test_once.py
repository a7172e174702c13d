"""Values that many threads want at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rft_data.core.once import Once

CLIENTS = 8


def test_value_is_made_once_for_all_that_wait_for_it() -> None:
    made, go_on, asked = list[int](), threading.Event(), threading.Semaphore(0)

    def make() -> int:
        asked.release()
        go_on.wait(30)
        made.append(1)
        return len(made)

    once = Once(make)
    with ThreadPoolExecutor(CLIENTS) as threads:
        found = [threads.submit(once.value) for _ in range(CLIENTS)]
        assert asked.acquire(timeout=30)
        go_on.set()
        assert {one.result(30) for one in found} == {1}


def test_value_that_could_not_be_made_is_made_for_the_next_one(tmp_path: Path) -> None:
    once = Once((tmp_path / "later").read_text)
    with pytest.raises(FileNotFoundError):
        once.value()
    (tmp_path / "later").write_text("now")
    assert once.value() == "now"
