"""What a program keeps on the disk while it runs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from explorers.sandbox import leftovers
from explorers.sandbox.leftovers import DiskQuota


def test_a_process_that_is_closed_to_us_for_a_moment_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one is between its start and the program; one that stays closed hides what it keeps."""
    now, closed = [0.0], [True]
    clock = SimpleNamespace(monotonic=lambda: now[0] + 1.0)
    monkeypatch.setattr(leftovers, "time", clock)  # the module `time` is that of other threads too
    monkeypatch.setattr(leftovers, "_open_and_deleted", lambda enough: None if closed[0] else 0)
    quota = DiskQuota(tmp_path, 1 << 20)
    assert not quota.is_over()
    now[0] = 0.9
    assert not quota.is_over()
    closed[0] = False
    assert not quota.is_over()
    closed[0], now[0] = True, 1.8
    assert not quota.is_over()
    now[0] = 3.0
    assert quota.is_over()


def test_files_in_the_folder_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "children", set)  # those that other tests have left keep files of theirs
    quota = DiskQuota(tmp_path, 1 << 20)
    (tmp_path / "much").write_bytes(b"x" * (1 << 20))
    assert not quota.is_over()
    (tmp_path / "more").write_bytes(b"x" * 5000)
    assert quota.is_over()
