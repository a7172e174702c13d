"""What is forced to the disk: names as well as bytes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.files import make_folder
from rft_data.run.evaluations import _link_tree
from rft_data.weights import checkpoint
from rft_data.weights.versions import VersionRegistry


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The paths that were synced since the last call, in order."""
    seen: list[str] = []
    real = os.fsync

    def recorded(handle: int) -> None:
        seen.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    def since() -> list[str]:
        found = seen[:]
        seen.clear()
        return found

    monkeypatch.setattr(os, "fsync", recorded)
    return since


def test_a_folder_that_is_made_has_its_name_synced_and_so_have_those_above(
    tmp_path: Path, synced: Callable[[], list[str]]
) -> None:
    make_folder(tmp_path / "a" / "b")
    assert synced() == [str(tmp_path), str(tmp_path / "a")]
    make_folder(tmp_path / "a" / "b")
    assert synced() == []


def test_a_sealed_checkpoint_is_there_by_name(tmp_path: Path, synced: Callable[[], list[str]]) -> None:
    folder = tmp_path / "checkpoints" / "checkpoint-1"
    folder.mkdir(parents=True)
    checkpoint.seal(folder, 1, {})
    assert {str(folder), str(folder.parent), str(tmp_path)} <= set(synced())


def test_published_weights_are_there_by_name_before_they_are_recorded(
    tmp_path: Path, synced: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights"
    with Buffer(tmp_path / "buffer") as buffer:
        registry = VersionRegistry(buffer, "run", weights, keep=1)
        before: list[str] = []
        real = buffer.add_rows
        monkeypatch.setattr(buffer, "add_rows", lambda *row: (before.extend(synced()), real(*row)))
        registry.publish(0, lambda draft: (draft / "model.bin").write_bytes(b"w"))  # type: ignore[arg-type, return-value]
        draft = str(weights / ".draft-v00000000")
        assert {str(tmp_path), f"{draft}/model.bin", draft} <= set(before)
        assert before[-1] == str(weights), "the rename"
        registry.publish(1, lambda draft: (draft / "model.bin").write_bytes(b"x"))  # type: ignore[arg-type, return-value]
    assert [path.name for path in weights.iterdir()] == ["v00000001"]
    assert synced()[-1] == str(weights), "the old folder's name is gone before its files are"


def test_a_kept_copy_of_weights_is_there_by_name(tmp_path: Path, synced: Callable[[], list[str]]) -> None:
    (tmp_path / "v1" / "probe").mkdir(parents=True)
    _link_tree(tmp_path / "v1", tmp_path / "best")
    draft = tmp_path / ".draft-best"
    assert synced() == [str(draft), str(draft / "probe"), str(tmp_path)]
