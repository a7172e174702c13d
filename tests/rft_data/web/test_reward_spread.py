from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.parts import Part
from rft_data.core.errors import IntegrityError
from rft_data.web.part_cache import Kept
from rft_data.web.reward_spread import Spread, histogram
from rft_data.web.row_choice import Choice, chosen
from tests.rft_data.conftest import make_experience


def append(buffer: Buffer, first: int, count: int, reward: Callable[[int], float | None]) -> None:
    buffer.append([make_experience(n, reward=reward(n)) for n in range(first, first + count)])


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each part that was read since."""
    found: list[int] = []
    whole = Part.read

    def noted(self: Part, *args: Any, **options: Any) -> Any:
        found.append(self.rows)
        return whole(self, *args, **options)

    monkeypatch.setattr(Part, "read", noted)
    return found


def counts(spread: Spread) -> list[tuple[float, float, int]]:
    return [(one.low, one.high, one.count) for one in spread.bins]


def by_numpy(buffer: Buffer, choice: Choice, edges: list[float]) -> list[int]:
    rewards = choice.read(buffer, ["seq", "reward"], 0, 1000)["reward"].drop_null().to_numpy()
    found: list[int] = np.histogram(rewards[np.isfinite(rewards)].astype(np.float64), edges)[0].tolist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "reward >= 0.25", "task_id = 't1' or reward < 0.5", "reward > 9"])
def test_a_new_version_costs_the_rows_that_it_brought_and_every_row_counts(
    tmp_path: Path, read: list[int], text: str
) -> None:
    folder, choice = tmp_path / "buffer", chosen(text)
    with Buffer(folder) as owner, Buffer(folder, read_only=True) as buffer:
        append(owner, 0, 40, lambda n: None if n % 7 == 0 else n % 11 / 11)
        append(owner, 40, 10, lambda n: None if n % 3 == 0 else n / 50)
        histogram(buffer, choice, text)
        assert sorted(read) == [10, 40]
        for first, size in ((50, 5), (55, 3)):
            append(owner, first, size, lambda n: n / 40)
            read.clear()
            spread = histogram(buffer, choice, text)
            assert read == [size]
            edges = [one.low for one in spread.bins] + [one.high for one in spread.bins[-1:]]
            assert [one.count for one in spread.bins] == (by_numpy(buffer, choice, edges) if edges else [])
            assert spread.newest is None


@pytest.mark.slow
def test_each_filter_counts_its_own_rows(tmp_path: Path) -> None:
    with Buffer(tmp_path / "buffer") as buffer:
        append(buffer, 0, 12, lambda n: n / 12)
        for text, count in (("", 12), ("reward >= 0.5", 6), ("reward < 0.25", 3), ("", 12)):
            assert sum(one.count for one in histogram(buffer, chosen(text), text).bins) == count


@pytest.mark.slow
def test_rows_that_are_removed_or_merged_count_as_they_are(tmp_path: Path, read: list[int]) -> None:
    folder = tmp_path / "buffer"
    with Buffer(folder) as owner:
        for first in (0, 6):
            append(owner, first, 6, lambda n: n / 12)
        before = histogram(owner, Choice(), "")
        owner.compact()
        read.clear()
        assert counts(histogram(owner, Choice(), "")) == counts(before)
        assert read == [12]
    lance.dataset(folder / "experiences.lance").delete("seq = 3")
    with Buffer(folder, read_only=True) as buffer:
        assert sum(one.count for one in histogram(buffer, Choice(), "").bins) == 11


def test_a_damaged_file_is_named_with_its_remedy(tmp_path: Path) -> None:
    folder = tmp_path / "buffer"
    with Buffer(folder) as owner:
        append(owner, 0, 12, lambda n: n / 12)
    for file in (folder / "experiences.lance" / "data").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    with Buffer(folder, read_only=True) as buffer, pytest.raises(IntegrityError, match="rft buffer verify"):
        histogram(buffer, Choice(), "")


@pytest.mark.slow
def test_of_very_many_rows_the_newest_parts_are_counted_and_the_page_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    monkeypatch.setattr("rft_data.web.reward_spread.WINDOW", 5)
    with Buffer(tmp_path / "buffer") as buffer:
        for first, size in ((0, 20), (20, 8), (28, 4), (32, 4)):
            append(buffer, first, size, lambda n: n / 40)
        for most, newest in ((100, None), (36, None), (35, 35), (31, 16), (17, 16), (9, 8), (7, 4), (6, 4)):
            monkeypatch.setattr("rft_data.web.row_choice.MOST_ROWS", most)
            spread = histogram(buffer, Choice(), "")
            assert spread.newest == newest
            assert sum(one.count for one in spread.bins) == (newest or 36)
        read.clear()
        monkeypatch.setattr("rft_data.web.row_choice.MOST_ROWS", 30)
        monkeypatch.setattr("rft_data.web.reward_spread._SORTED", Kept(1 << 20, lambda one: one.nbytes))
        append(buffer, 36, 1, lambda n: 0.5)
        histogram(buffer, Choice(), "")
        assert sorted(read) == [1, 4, 4, 8]  # not the 20 rows that are out of reach


@pytest.mark.slow
def test_a_part_too_large_to_be_looked_at_is_searched_for_its_newest_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.web.reward_spread.WINDOW", 5)
    monkeypatch.setattr("rft_data.web.row_choice.MOST_ROWS", 10)
    with Buffer(tmp_path / "buffer") as buffer:
        append(buffer, 0, 20, lambda n: n / 40)
        append(buffer, 20, 2, lambda n: n / 40)
        spread = histogram(buffer, Choice(), "")
        assert (spread.newest, sum(one.count for one in spread.bins)) == (10, 10)


def test_what_is_kept_is_bounded_and_what_was_asked_for_last_stays() -> None:
    kept: Kept[bytes] = Kept(10_000, len)
    made: list[int] = []

    def value(number: int) -> bytes:
        def make() -> bytes:
            made.append(number)
            return bytes(1_000 if number % 2 else 0)

        return kept.of(number, make)

    for number in range(200):
        value(0)
        value(number)
        assert kept.nbytes <= 10_000
    assert made == list(range(200))  # 0 was asked for all along
    value(1)
    assert made[-1] == 1  # it had to go
    huge = kept.of("huge", lambda: bytes(20_000))
    assert len(huge) == 20_000
    assert kept.nbytes == 0
