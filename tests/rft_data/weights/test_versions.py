import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rft_data.buffer import Buffer
from rft_data.core import failpoints
from rft_data.core.errors import IntegrityError, ParityError
from rft_data.core.files import read_manifest, tensors_in, write_manifest
from rft_data.weights import checkpoint
from rft_data.weights.probe import Probe
from rft_data.weights.versions import VersionRegistry


def save(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "sub").mkdir()
    (folder / "sub" / "config.json").write_text("{}")


@pytest.mark.slow
def test_versions_only_grow_over_restarts(buffer: Buffer, tmp_path: Path) -> None:
    registry = VersionRegistry(buffer, "run", tmp_path / "weights")
    assert registry.latest == -1
    assert [registry.publish(0, save).version, registry.issue(1), registry.publish(2, save).version] == [
        0,
        1,
        2,
    ]
    again = VersionRegistry(buffer, "run", tmp_path / "weights")
    assert again.latest == 2
    assert again.publish(1, save).version == 3  # resumed from step 1: a new number for the same step
    assert [again.optimizer_step(v) for v in range(4)] == [0, 1, 2, 1]
    assert VersionRegistry(buffer, "another", tmp_path / "w").latest == -1
    with pytest.raises(IntegrityError, match="never issued policy version 9"):
        again.optimizer_step(9)


def test_published_directory_is_complete_and_old_ones_are_pruned(buffer: Buffer, tmp_path: Path) -> None:
    registry = VersionRegistry(buffer, "run", tmp_path, keep=2)
    refs = [registry.publish(step, save) for step in range(3)]
    assert [Path(ref.path).is_dir() for ref in refs] == [False, True, True]
    manifest = read_manifest(Path(refs[2].path))
    assert (manifest["version"], manifest["step"], set(manifest["files"])) == (
        2,
        2,
        {"model.safetensors", "sub/config.json"},
    )


def fill(registry: VersionRegistry, step: int, text: bytes = b"weights") -> str:
    """Another process's part: a draft filled and sealed; returns its digest."""
    draft = registry.draft(step)
    save(draft)
    (draft / "model.safetensors").write_bytes(text)
    return write_manifest(draft, registry.header(step))


def test_a_draft_filled_elsewhere_becomes_a_version_when_finished(buffer: Buffer, tmp_path: Path) -> None:
    registry = VersionRegistry(buffer, "run", tmp_path)
    digest = fill(registry, 4)
    assert registry.latest == -1
    assert registry.published() == []
    ref = registry.finish(4, digest)
    assert (ref.version, ref.step, Path(ref.path)) == (0, 4, tmp_path / "v00000000")
    assert read_manifest(Path(ref.path))["step"] == 4
    assert registry.published() == [ref]


def test_finish_refuses_a_draft_that_is_not_the_promised_one(buffer: Buffer, tmp_path: Path) -> None:
    registry = VersionRegistry(buffer, "run", tmp_path)
    with pytest.raises(IntegrityError, match="was not written completely"):
        registry.finish(0, "x")
    registry.draft(0)
    with pytest.raises(IntegrityError, match="was not written completely"):
        registry.finish(0, "x")
    digest = fill(registry, 0)
    with pytest.raises(IntegrityError, match="is not the one expected"):
        registry.finish(0, "another")
    with pytest.raises(IntegrityError, match="is not the one expected"):
        registry.finish(1, digest)
    draft = registry.draft(0)
    digest = write_manifest(draft, {**registry.header(0), "version": 5})
    with pytest.raises(IntegrityError, match="is not the one expected"):
        registry.finish(0, digest)
    assert registry.latest == -1
    assert registry.finish(0, fill(registry, 0)).version == 0


@pytest.mark.parametrize("again", ["finish", "draft and finish"])
@pytest.mark.parametrize("point", ["publish.written", "publish.renamed", "publish.recorded"])
def test_finishing_again_after_an_error_makes_one_version(
    buffer: Buffer, tmp_path: Path, point: str, again: str
) -> None:
    registry = VersionRegistry(buffer, "run", tmp_path)
    digest = fill(registry, 3)
    with failpoints.armed(point, 1), pytest.raises(OSError, match="failpoint"):
        registry.finish(3, digest)
    if again != "finish":
        digest = fill(registry, 3)
    ref = registry.finish(3, digest)
    assert (ref.version, registry.latest, registry.optimizer_step(0)) == (0, 0, 3)
    assert registry.published() == [ref]
    assert {p.name for p in tmp_path.iterdir() if p.name != "buffer"} == {"v00000000"}


@pytest.mark.slow
def test_a_restart_knows_what_is_published_and_still_there(buffer: Buffer, tmp_path: Path) -> None:
    registry = VersionRegistry(buffer, "run", tmp_path, keep=2)
    refs = [registry.publish(step, save) for step in (0, 2, 4)]
    registry.issue(5)
    VersionRegistry(buffer, "other", tmp_path / "other").publish(0, save)
    again = VersionRegistry(buffer, "run", tmp_path)
    assert again.published() == refs[1:]
    assert again.ref(2) == refs[2]
    with pytest.raises(IntegrityError, match=r"were removed; on disk: \[1, 2\]"):
        again.ref(0)
    with pytest.raises(IntegrityError, match="its weights were not published"):
        again.ref(3)
    with pytest.raises(IntegrityError, match="never issued policy version 4"):
        again.ref(4)
    (tmp_path / "v00000002" / "manifest.json").write_text('{"files": {}}')
    with pytest.raises(IntegrityError, match="is not the one expected"):
        again.ref(2)


def test_pruning_leaves_what_an_engine_holds(buffer: Buffer, tmp_path: Path) -> None:
    registry = VersionRegistry(buffer, "run", tmp_path, keep=1)
    first = registry.publish(0, save)
    registry.hold(first.version)
    registry.hold(first.version)
    registry.publish(1, save)
    registry.let_go(first.version)
    last = registry.publish(2, save)
    assert registry.published() == [first, last]
    registry.let_go(first.version)
    assert registry.published() == [first, last]  # goes with the next pruning
    newest = registry.publish(3, save)
    assert registry.published() == [newest]


def tensor_file(path: Path) -> None:
    save_file({"w": np.zeros((2, 3), np.float32), "b": np.zeros(0, np.int64)}, path)


def test_a_digest_is_what_manifests_of_earlier_versions_hold(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    manifest_digest = write_manifest(tmp_path, {})
    files = read_manifest(tmp_path)["files"]
    assert files == {"model.safetensors": {"bytes": 7, "blake2b": "873ac3c6df553eaa62331fd4ff9b521a"}}
    assert manifest_digest == "0c7f784be423d47858cdf9b671cbc3d9"


def test_a_manifest_names_the_tensors_of_whole_files_only(tmp_path: Path) -> None:
    tensor_file(tmp_path / "model.safetensors")
    (tmp_path / "probe").mkdir()
    tensor_file(tmp_path / "probe" / "other.safetensors")
    write_manifest(tmp_path, {})
    named = {"w": ["F32", [2, 3]], "b": ["I64", [0]]}
    assert read_manifest(tmp_path)["tensors"] == named
    whole = (tmp_path / "model.safetensors").read_bytes()
    for damaged in (whole[:-1], whole + b"x", whole[:5], b"", whole[:8] + b"[1]", b"\xff" * 64):
        (tmp_path / "model.safetensors").write_bytes(damaged)
        assert tensors_in(tmp_path) == {}


@pytest.mark.parametrize("fails", [False, True])
def test_folder_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_version_is_recorded(
    buffer: Buffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """`fails`: the disk refuses once to keep the name; then the same is tried again."""
    root = tmp_path / "weights"
    registry = VersionRegistry(buffer, "run", root)
    draft, final = root / ".draft-v00000000", root / "v00000000"
    happened: list[str] = []
    real = os.fsync

    def recorded(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        happened.append(f"renamed {path}" if final.exists() else path)
        if fails and happened.count(f"renamed {root}") == 1 == happened.count(happened[-1]):
            raise OSError("the disk is gone")
        real(handle)

    class Points(failpoints.Failpoint):
        def hit(self, name: str) -> None:
            happened.append(name)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(failpoints, "_armed", Points("", 0, ""))
    digest = fill(registry, 0)
    if fails:
        with pytest.raises(OSError, match="the disk is gone"):
            registry.finish(0, digest)
        assert registry.latest == -1
    registry.finish(0, digest)
    filled = happened[: happened.index("publish.written")]
    files = ("model.safetensors", "sub", "sub/config.json", ".manifest.json.draft")
    assert {str(draft / name) for name in files} <= set(filled)
    assert filled[-2:] == [str(draft / ".manifest.json.draft"), str(draft)]
    named = ["publish.written", f"renamed {root}"] * (1 + fails)
    rest = happened[len(filled) :]
    assert rest[: len(named) + 1] == [*named, "publish.renamed"]
    assert "publish.recorded" in rest


def test_a_folder_has_lost_its_name_on_the_disk_before_it_loses_files(
    buffer: Buffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "weights"
    registry = VersionRegistry(buffer, "run", root, keep=1)
    registry.publish(0, save)
    left = root / ".removed-v00000000"  # by a run that was killed while deleting another of this name
    left.mkdir()
    (left / "config.json").write_text("{}")
    synced: list[tuple[bool, bool]] = []
    real = os.fsync

    def recorded(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}") == str(root):
            synced.append(((root / "v00000000").exists(), (left / "model.safetensors").exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    registry.publish(1, save)
    assert synced[-1] == (False, True), "renamed, and whole, when its new name is kept"
    assert not left.exists()


def test_failed_save_leaves_no_version(buffer: Buffer, tmp_path: Path) -> None:
    registry = VersionRegistry(buffer, "run", tmp_path)

    def broken(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        registry.publish(0, broken)
    assert registry.latest == -1
    assert not list(tmp_path.glob("v*"))
    assert registry.publish(0, save).version == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "model.safetensors").write_bytes(b"weightz"), "does not match the digest"),
        (lambda d: (d / "model.safetensors").write_bytes(b"w"), "does not match the digest"),
        (lambda d: (d / "sub" / "config.json").unlink(), "lacks 'sub/config.json'"),
        (lambda d: (d / "manifest.json").unlink(), "was not written completely"),
        (lambda d: (d / "manifest.json").write_text("{"), "is damaged"),
        (lambda d: (d / "manifest.json").write_text("[]"), "is damaged"),
    ],
)
def test_damage_to_a_directory_is_found(buffer: Buffer, tmp_path: Path, damage, message: str) -> None:
    folder = Path(VersionRegistry(buffer, "run", tmp_path).publish(0, save).path)
    damage(folder)
    with pytest.raises(IntegrityError, match=message):
        read_manifest(folder)


def test_newest_checkpoint_falls_back_over_a_damaged_one_and_says_so(tmp_path: Path, caplog) -> None:
    for step in (5, 10, 15):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save(folder)
        if step != 15:
            checkpoint.seal(folder, step, {"selector": {"position": step}})
    (tmp_path / "checkpoint-10" / "model.safetensors").write_bytes(b"?")
    (tmp_path / "checkpoint-12").mkdir()
    (tmp_path / "checkpoint-12" / "manifest.json").write_text('{"files": {}}')
    with caplog.at_level(logging.WARNING):
        found = checkpoint.newest(tmp_path)
    assert (found.step, found.state["selector"]) == (5, {"position": 5})
    assert "checkpoint-15" in caplog.text
    assert "checkpoint-10" in caplog.text
    assert "'step'" in caplog.text
    assert checkpoint.newest(tmp_path / "none") is None


def test_folders_with_other_names_are_no_checkpoints(tmp_path: Path, caplog) -> None:
    for name in ("checkpoint-old", "checkpoint-5", "checkpoint-5-copy", "checkpoint-"):
        folder = tmp_path / name
        folder.mkdir()
        checkpoint.seal(folder, 5, {"selector": 1})
    with caplog.at_level(logging.WARNING):
        assert checkpoint.newest(tmp_path).directory.name == "checkpoint-5"
    assert "checkpoint-old" in caplog.text
    checkpoint.prune(tmp_path, keep=1)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.slow
def test_a_manifest_with_a_flipped_bit_is_damaged_wherever_the_bit_is(tmp_path: Path) -> None:
    state = {"selector": {"picks": {10: 0.1, 9: [1, None]}}, "rows": 96}
    for step in (3, 4):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model").write_bytes(b"weights")
        checkpoint.seal(folder, step, state)
    assert checkpoint.newest(tmp_path).step == 4
    manifest = tmp_path / "checkpoint-4" / "manifest.json"
    sound = manifest.read_bytes()
    for bit in range(0, 8 * len(sound), 3):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        manifest.write_bytes(data)
        found = checkpoint.newest(tmp_path)
        if found.step == 3:
            (tmp_path / "damaged-checkpoint-4").rename(tmp_path / "checkpoint-4")
        else:  # the bit is in the list of tensors, which a checkpoint has no use for
            assert (found.step, found.state) == (4, json.loads(json.dumps(state)))
            assert bit // 8 > sound.index(b'"tensors"')


def test_a_checkpoint_of_0_5_0_has_no_digest_of_its_state_but_its_step_must_be_that_of_its_folder(
    tmp_path: Path,
) -> None:
    for step in (3, 4):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        write_manifest(folder, {"step": step, "state": {"selector": 1}})
    assert checkpoint.newest(tmp_path).step == 4
    manifest = tmp_path / "checkpoint-4" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step":4', '"step":5'))
    assert checkpoint.newest(tmp_path).step == 3


def test_a_step_that_is_damaged_twice_is_put_aside_twice(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-10"
    for _ in range(3):
        folder.mkdir()
        save(folder)
        checkpoint.seal(folder, 10, {})
        (folder / "model.safetensors").write_bytes(b"?")
        assert checkpoint.newest(tmp_path) is None
    aside = {path.name for path in tmp_path.iterdir()}
    assert aside == {"damaged-checkpoint-10", "damaged-checkpoint-10.2", "damaged-checkpoint-10.3"}


def test_prune_keeps_the_newest_complete_checkpoints(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save(folder)
        if step != 20:
            checkpoint.seal(folder, step, {})
    checkpoint.prune(tmp_path, keep=2)
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint-10", "checkpoint-15", "checkpoint-20"}


def probe() -> Probe:
    return Probe(
        ((1, 2, 3), (4, 5)),
        (np.array([0, -1, -2], np.float32), np.array([0, -0.5], np.float32)),
    )


def test_probe_round_trips_and_measures_the_largest_difference(tmp_path: Path) -> None:
    probe().save(tmp_path)
    loaded = Probe.load(tmp_path)
    assert loaded.token_ids == ((1, 2, 3), (4, 5))
    measured = [np.array([9, -1, -2.25], np.float32), np.array([9, -0.5], np.float32)]
    assert loaded.check(measured, 0.3, "engine") == pytest.approx(0.25)
    with pytest.raises(ParityError, match=r"differ from the trainer's by 0\.25 nats \(wanted at most 0\.2\)"):
        loaded.check(measured, 0.2, "engine")
    with pytest.raises(ParityError, match="nan"):
        loaded.check([np.full(3, np.nan, np.float32), measured[1]], 1e9, "engine")


def test_directory_without_probe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="has no probe/"):
        Probe.load(tmp_path)


def test_a_draft_that_a_killed_write_left_is_no_file_of_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"w")
    (tmp_path / ".manifest.json.draft").write_text("{")
    write_manifest(tmp_path, {"step": 1})
    assert set(read_manifest(tmp_path)["files"]) == {"weights.bin"}
