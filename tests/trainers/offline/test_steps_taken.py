"""The count of a stage's steps lies beside its folder, and outside of it."""

from __future__ import annotations

from pathlib import Path

from trainers.offline.steps_taken import forget_steps, note_steps, steps_taken


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
