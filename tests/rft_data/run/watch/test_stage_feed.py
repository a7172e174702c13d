"""A stage's numbers reach trackers while it trains: each step once, in order."""

from pathlib import Path

from rft_data.run.watch.stage_feed import StageFeed
from rft_data.run.watch.tracker_feed import Point
from tests.waiting import wait_for
from trainers.offline.steps_taken import note_numbers, note_steps

HISTORY = {(step, "0-sft/loss"): float(step) for step in (1, 2, 3)} | {(3, "0-sft/examples"): 7.0}


class Seen:
    """A tracker that keeps what it is shown."""

    name = "seen"

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []

    def log(self, point: Point) -> None:
        self.points.append((point.step, dict(point.numbers["trainer"])))

    def close(self) -> None:
        pass


def test_steps_are_shown_while_the_stage_trains_and_the_rest_at_its_end(tmp_path: Path) -> None:
    tracker = Seen()
    with StageFeed([tracker], "0-sft", tmp_path / "0-sft") as feed:
        assert feed.look() is None
        note_numbers(tmp_path / "0-sft", {"step": 2.0, "loss": 2.0})
        note_steps(tmp_path / "0-sft", 2, 3)
        assert feed.look() == (2, 3)
        wait_for(lambda: tracker.points)
        assert tracker.points == [(2, {"0-sft/loss": 2.0})], "step 1 was shown before a resume"
        feed.end(HISTORY)
        note_numbers(tmp_path / "0-sft", {"step": 4.0, "loss": 4.0})
        feed.look()
    assert tracker.points[1:] == [(3, {"0-sft/loss": 3.0, "0-sft/examples": 7.0})]


def test_a_stage_that_was_seen_whole_has_its_last_numbers_added(tmp_path: Path) -> None:
    tracker = Seen()
    with StageFeed([tracker], "0-sft", tmp_path / "0-sft") as feed:
        for step in (1, 2, 3):
            note_numbers(tmp_path / "0-sft", {"step": step, "loss": step})
        feed.look()
        feed.end(HISTORY)
    assert [step for step, _ in tracker.points] == [1, 2, 3, 3]
    assert tracker.points[-1] == (3, {"0-sft/examples": 7.0})


def test_a_stage_that_trains_elsewhere_is_shown_at_its_end(tmp_path: Path) -> None:
    tracker = Seen()
    with StageFeed([tracker], "0-sft", tmp_path / "0-sft") as feed:
        feed.end(HISTORY)
    assert [step for step, _ in tracker.points] == [1, 2, 3]
