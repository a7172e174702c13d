"""Runs on an S3-compatible store where something goes wrong beside them: network, disk, other owners."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import FencedError, IntegrityError, StalledError
from rft_data.core.files import write_manifest
from rft_data.core.objects import Objects
from rft_data.core.words import StopRequest
from rft_data.run.mirror import Mirror, mirror, run_folder
from rft_data.run.record import STOP_FILE
from tests.object_store import Way, refused
from tests.rft_data.conftest import make_experience
from tests.rft_data.run.stored_runs import Node, files, write
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def checkpoint(run: Mirror, step: int) -> None:
    folder = f"checkpoints/checkpoint-{step}"
    write_manifest(write(run.folder, f"{folder}/model", f"of {step}").parent, {})


def before_puts(patch: pytest.MonkeyPatch, act: Callable[[Path], None]) -> None:
    """Call `act` with each file before it is put; the put is a real one."""
    real = Objects.put

    def put(objects: Objects, file: Path, key: str) -> None:
        act(file)
        real(objects, file, key)

    patch.setattr(Objects, "put", put)


def stored(url: str, name: str) -> str:
    """What a command on another machine sees of a file."""
    return (run_folder(url) / name).read_text()


def test_record_and_log_are_stored_while_a_large_file_is(
    url: str, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "BEAT_S", 0.05)
    run, go_on = Mirror(url), threading.Event()
    write(run.folder, "run.pid", "1")
    run.start()
    before_puts(monkeypatch, lambda file: "weights" in str(file) and go_on.wait())
    write(run.folder, "weights/v1/model", "large")
    saving = threading.Thread(target=run.save)
    saving.start()
    write(run.folder, "run.pid", "2")
    try:
        wait_for(lambda: stored(url, "run.pid") == "2")
    finally:
        go_on.set()
        saving.join()
        run.close()


def test_a_beat_outlives_a_disk_that_refuses_and_tells_nothing_that_is_not_stored(
    url: str, node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mirror, "BEAT_S", 0.05)
    run = Mirror(url)
    write(run.folder, "run.pid", "1")
    write(run.folder, "progress.json", "none")
    run.start()
    copies = run.folder / ".stored"
    shutil.rmtree(copies, ignore_errors=True)
    copies.write_text("in the way")
    write(run.folder, "run.pid", "2")
    write(run.folder, f"{'long' * 60}.txt", "")  # a name to which nothing can be added
    wait_for(lambda: caplog.records or not run._thread.is_alive())
    copies.unlink()
    write(run.folder, "progress.json", "stage 0 is done, its model is still to be stored")
    wait_for(lambda: stored(url, "run.pid") == "2")
    assert stored(url, "progress.json") == "none"
    run.close()


def test_lines_of_the_log_that_another_machine_stored_are_kept(url: str, node: Node) -> None:
    first = Mirror(url)
    write(first.folder, "log.txt", "a\n")
    first.save()
    first._lock.release()  # killed
    write(first.folder, "log.txt", "a\nand a long line that was not stored\n")
    node.go("b")
    second = Mirror(url)
    write(second.folder, "log.txt", "a\nb\n")
    second.save()
    second.close()
    node.go("a")
    again = Mirror(url)
    assert files(again.folder)["log.txt"] == "a\nb\n"
    write(again.folder, "log.txt", "a\nb\nc\n")
    again.close()


def test_a_request_to_stop_is_not_left_to_the_next_start(
    url: str, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Mirror(url)
    first.save()
    Objects(url).put(write(tmp_path, "stop", StopRequest.DRAIN), mirror.STOP_OBJECT)
    first._lock.release()  # killed before it looked
    monkeypatch.setattr(mirror, "BEAT_S", 0.05)
    second = Mirror(url)
    assert not Objects(url).has(mirror.STOP_OBJECT)
    assert not (second.folder / STOP_FILE).exists()
    second.close()


def test_a_fenced_owner_puts_nothing_on_the_store(url: str, node: Node) -> None:
    first = Mirror(url)
    write(first.folder, "weights/v1/model", "one")
    first.save()
    node.go("b")
    second = Mirror(url)
    keys = Objects(url).keys_below("objects")
    write(first.folder, "weights/v2/model", "two")
    write(first.folder, "log.txt", "the end")
    with pytest.raises(FencedError, match="taken over by another process"):
        first.save()
    first.close()
    assert Objects(url).keys_below("objects") == keys
    second.close()


def test_a_file_that_changes_while_it_is_put_is_stored_as_it_is_afterwards(
    url: str, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Mirror(url)
    model = write(run.folder, "weights/v1/model", "half")
    texts = iter(["whole"])
    before_puts(monkeypatch, lambda file: file == model and [model.write_text(text) for text in texts])
    run.save()
    run.close()
    node.go("b")
    again = Mirror(url)
    assert files(again.folder)["weights/v1/model"] == "whole"
    again.close()


def test_a_file_that_goes_while_others_are_put_is_not_missed(
    url: str, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Mirror(url)
    write(run.folder, "trackers/a+b", "one")
    write(run.folder, "trackers/a/b", "other")
    gone = write(run.folder, "weights/v1/model", "gone")
    before_puts(monkeypatch, lambda file: file == gone and shutil.rmtree(gone.parent))
    run.save()
    run.close()
    node.go("b")
    again = Mirror(url)
    assert files(again.folder) == {"trackers/a+b": "one", "trackers/a/b": "other"}
    again.close()


def test_the_newest_sound_checkpoint_is_fetched_and_the_others_stay_stored(
    url: str, node: Node, tmp_path: Path
) -> None:
    first = Mirror(url)
    for step in (9, 10, 11):
        checkpoint(first, step)
    write(first.folder, "other/model", "of 9")  # the same content at another place
    first.save()
    newest = first._stored["checkpoints/checkpoint-11/model"].key
    first.close()
    node.go("b")
    second = Mirror(url)
    assert {name for name in files(second.folder) if name.startswith("check")} == {
        "checkpoints/checkpoint-11/manifest.json",
        "checkpoints/checkpoint-11/model",
    }
    second.save()
    assert "checkpoints/checkpoint-10/model" in second._stored
    Objects(url).put(write(tmp_path, "other", "rotten"), newest)
    second.close()
    node.go("c")
    third = Mirror(url)
    assert files(third.folder)["checkpoints/checkpoint-10/model"] == "of 10"
    assert not (third.folder / "checkpoints" / "checkpoint-11").exists()
    checkpoint(third, 11)
    third.save()
    assert "checkpoints/checkpoint-9/model" not in third._stored
    third.close()
    node.go("d")
    fourth = Mirror(url)
    assert files(fourth.folder)["checkpoints/checkpoint-11/model"] == "of 11"
    fourth.close()


def test_an_older_checkpoint_of_a_start_that_went_on_otherwise_is_removed(url: str, node: Node) -> None:
    first = Mirror(url)
    first.save()
    first._lock.release()  # killed; its checkpoint was not stored
    folder = first.folder
    node.go("b")
    second = Mirror(url)
    for step in (10, 11):
        checkpoint(second, step)
    second.save()
    second.close()
    node.go("a")
    write_manifest(write(folder, "checkpoints/checkpoint-10/model", "another 10").parent, {})
    again = Mirror(url)
    assert not (again.folder / "checkpoints" / "checkpoint-10").exists()
    again.close()


def test_what_a_killed_fetch_left_is_no_version_of_weights(url: str, node: Node) -> None:
    first = Mirror(url)
    write(first.folder, "weights/v1/model", "one")
    first.save()
    first.close()
    node.go("b")
    kept = Objects.fetch

    def fetch(objects: Objects, key: str, file: Path) -> None:
        kept(objects, key, file)
        if file.read_bytes() == b"one":
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objects, "fetch", fetch)
        with pytest.raises(KeyboardInterrupt):
            Mirror(url)
    node.go("a")
    shutil.rmtree(first.folder / "weights")
    first = Mirror(url)
    shutil.rmtree(first.folder / "weights")
    first.save()
    first.close()
    node.go("b")
    again = Mirror(url)
    assert not (again.folder / "weights").exists()
    again.close()


def test_objects_of_somebody_else_are_left_alone(url: str, node: Node, tmp_path: Path) -> None:
    Objects(url).put(write(tmp_path, "note", "mine"), "objects/notes/mine")
    Mirror(url).close()
    Mirror(url).close()
    assert Objects(url).keys_below("objects") == ["objects/notes/mine"]


def test_a_damaged_file_that_is_no_checkpoint_is_refused(url: str, node: Node, tmp_path: Path) -> None:
    first = Mirror(url)
    checkpoint(first, 1)
    first.save()
    Objects(url).put(write(tmp_path, "other", "x"), first._stored["checkpoints/checkpoint-1/model"].key)
    first.close()
    node.go("b")
    with pytest.raises(IntegrityError, match="is damaged: it is not what was stored"):
        Mirror(url)


def test_a_save_is_as_patient_as_an_owner_is_and_the_next_one_stores_it(
    url: str, node: Node, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "PATIENT", {"client_max_retries": "1"})  # instead of 5 minutes
    run = Mirror(url)
    write(run.folder, "weights/v1/model", "one")
    for first in ("the question who the owner is", "a put"):
        with pytest.MonkeyPatch.context() as patch:
            if first == "a put":
                before_puts(patch, lambda _: way.break_off(1_000_000))
            else:
                way.break_off(1_000_000)
            with pytest.raises(StalledError, match="cannot be reached") as refused:
                run.save()
        assert "max_retries: 1," in str(refused.value.__cause__), first
        way.break_off(0)
    run.save()
    assert "weights/v1/model" in run._stored
    run.close()


def test_credentials_that_expire_end_an_owner_at_once_and_nothing_that_was_stored_is_lost(
    url: str, node: Node, store_server: str
) -> None:
    run = Mirror(url)
    write(run.folder, "weights/v1/model", "one")
    run.save()
    write(run.folder, "weights/v2/model", "two")
    with Buffer(f"{url}/buffer") as buffer:
        assert buffer.append([make_experience(0)]).seqs == (0,)
        with refused(store_server):
            for act in (run.save, lambda: buffer.append([make_experience(1)])):
                with pytest.raises(
                    StalledError, match=r"the store refuses .* \(InvalidAccessKeyId\)"
                ) as said:
                    act()
                assert "retries" not in str(said.value.__cause__), "it would be asked again for 5 minutes"
            node.go("b")
            for act in (lambda: Mirror(url), lambda: Buffer(f"{url}/buffer"), lambda: len(buffer)):
                with pytest.raises(StalledError, match="AWS_SESSION_TOKEN are wrong, have expired"):
                    act()
    second = Mirror(url)
    assert files(second.folder) == {"weights/v1/model": "one"}
    second.close()
    run.close()
    with Buffer(f"{url}/buffer", read_only=True) as buffer:
        assert len(buffer) == 1
