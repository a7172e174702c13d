"""A damaged file is told with the remedy, wherever it is met first; the remedy then works."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.care.repair import repair
from rft_data.buffer.faults import damage_named
from rft_data.buffer.location import OWNER_LOCK
from rft_data.buffer.manifests import manifests
from rft_data.core.errors import IntegrityError
from tests.rft_data.conftest import make_experience


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A buffer with two commits."""
    folder = tmp_path_factory.mktemp("sound") / "buffer"
    with Buffer(folder) as buffer:
        for number in range(2):
            buffer.append([make_experience(number)])
    return folder


def newest_manifest(root: Path) -> Path:
    return manifests(root / "experiences.lance")[0]


def newest_data(root: Path) -> Path:
    return max((root / "experiences.lance" / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def use(root: Path, *, read_only: bool) -> None:
    with Buffer(root, read_only=read_only) as buffer:
        buffer.read("experiences")


CASES = [
    (newest_manifest, empty),
    (newest_manifest, halve),
    (newest_manifest, zero),
    (newest_data, empty),
    (newest_data, halve),
    (newest_data, zero),
    (newest_data, Path.unlink),
]


@pytest.mark.parametrize(("place", "damage"), CASES)
@pytest.mark.parametrize("locked", [True, False])
def test_an_owner_and_a_reader_are_told_to_repair(
    tmp_path: Path, sound: Path, place: Callable[[Path], Path], damage: Callable[[Path], None], locked: bool
) -> None:
    root = shutil.copytree(sound, tmp_path / "buffer")
    if not locked:
        (root / OWNER_LOCK).unlink()  # as a power cut may: the next owner takes the tables over
    damage(place(root))
    for read_only in (False, True):
        with pytest.raises(IntegrityError, match=r"experiences.*cannot be read.*`rft buffer repair"):
            use(root, read_only=read_only)


@pytest.mark.slow
def test_the_repair_works_in_the_process_that_failed_to_open(tmp_path: Path, sound: Path) -> None:
    root = shutil.copytree(sound, tmp_path / "buffer")
    (root / OWNER_LOCK).unlink()
    empty(newest_manifest(root))
    with pytest.raises(IntegrityError) as failed:
        Buffer(root)
    assert repair(root).recovered == {"experiences": 1}
    use(root, read_only=False)
    assert "cannot be read" in str(failed.value)


def test_shortages_and_object_stores_are_no_damage() -> None:
    with pytest.raises(OSError, match="os error 24"), damage_named("/b", "tasks"):
        raise OSError("LanceError(IO): Too many open files (os error 24)")
    with pytest.raises(RuntimeError, match="timed out"), damage_named("s3://bucket/b", "tasks"):
        raise RuntimeError("lance error: LanceError(IO): timed out")
    with pytest.raises(ValueError, match="no field"), damage_named("/b", "tasks"):
        raise ValueError("no field 'a'")
