"""The count of a stage's steps and its numbers lie beside its folder, and outside of it."""

from __future__ import annotations

from pathlib import Path

from trainers.offline.steps_taken import (
    forget_steps,
    note_numbers,
    note_steps,
    numbers_since,
    steps_taken,
)


def test_the_count_is_read_back_by_the_stage_and_by_its_checkpoints_folder(tmp_path: Path) -> None:
    stage = tmp_path / "0-sft"
    assert steps_taken(stage) is None
    note_steps(tmp_path / "0-sft.checkpoints", 3, 40)
    assert steps_taken(stage) == (3, 40)
    assert not stage.exists()
    (tmp_path / "0-sft.steps").write_text("3")
    assert steps_taken(stage) is None, "it is being written"
    forget_steps(stage)
    forget_steps(stage)
    assert list(tmp_path.iterdir()) == []
    note_steps(tmp_path / "not" / "there", 1, 2)  # ends no training


def test_numbers_are_read_from_where_the_last_look_ended(tmp_path: Path) -> None:
    stage, log = tmp_path / "0-sft", tmp_path / "0-sft.numbers"
    assert numbers_since(stage, 0) == ([], 0)
    note_numbers(tmp_path / "0-sft.checkpoints", {"step": 1.0, "loss": 2.0})
    found, place = numbers_since(stage, 0)
    assert (found, place) == ([{"step": 1.0, "loss": 2.0}], log.stat().st_size)
    with log.open("a") as file:
        file.write('{"step": 2.0}\n{"ste')
    assert numbers_since(stage, place) == ([{"step": 2.0}], place + 14)
    log.write_text('{"step": 9.0}\n')
    assert numbers_since(stage, place + 14)[0] == [{"step": 9.0}], "it began anew"
    forget_steps(stage)
    assert list(tmp_path.iterdir()) == []
    note_numbers(tmp_path / "not" / "there", {"step": 1.0})  # ends no training
