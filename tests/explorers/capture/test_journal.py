"""What is known of open trajectories after a kill, a full disk, and many rewards."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from explorers.capture.journal import Journal
from rft_data.core.errors import DiskFullError, IntegrityError

ABOUT = {"taskset": "served"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "open.jsonl"


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size` bytes, as on a disk that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_note_that_has_no_room_leaves_no_half_of_it(path: Path) -> None:
    journal = Journal(path)
    journal.opened("one-0", ABOUT)
    size = path.stat().st_size
    with full_after(size + 10):
        with pytest.raises(DiskFullError, match="make room"):
            journal.opened("two-1", ABOUT)
        assert path.stat().st_size == size
        journal.ended("one-0")  # its rows are stored, whether this is noted or not
    journal.opened("three-2", ABOUT)
    assert Journal(path).left == {"one-0": ABOUT, "three-2": ABOUT}


def test_half_of_the_last_line_was_never_answered(path: Path) -> None:
    path.write_text('{"open": "one-0", "taskset": "served"}\n{"open": "two-1", "tas')
    journal = Journal(path)
    assert journal.left == {"one-0": ABOUT}
    journal.settle()
    journal.opened("three-2", ABOUT)
    assert Journal(path).left == {"three-2": ABOUT}


def test_a_line_in_the_middle_that_is_damaged_is_named(path: Path) -> None:
    path.write_text('{"open": "one-0", "tas{"open": "two-1"}\n{"open": "three-2"}\n')
    with pytest.raises(IntegrityError, match=r"open\.jsonl:1 is damaged"):
        Journal(path)


def test_rewards_of_one_trajectory_do_not_grow_the_file(path: Path) -> None:
    journal = Journal(path)
    long = {"taskset": "x" * 20_000}
    journal.opened("other-1", ABOUT)
    for n in range(200):
        journal.opened("one-0", {**long, "reward": float(n)})
        assert path.stat().st_size < 1 << 21
    assert Journal(path).left == {"other-1": ABOUT, "one-0": {**long, "reward": 199.0}}
    journal.ended("one-0")
    journal.settle()
    assert Journal(path).left == {"other-1": ABOUT}


def test_what_is_noted_after_it_was_written_anew_is_known(path: Path) -> None:
    journal = Journal(path)
    for n in range(100):
        journal.opened(f"one-{n}", {"taskset": "x" * 20_000})
        if n >= 5:
            journal.ended(f"one-{n}")
    assert list(Journal(path).left) == [f"one-{n}" for n in range(5)]
