"""Flipped bits: every flip that changes what a reader would get is found, row by row."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.care import repair, verify
from rft_data.buffer.care.examine import Examined, as_they_are, examine_each
from rft_data.buffer.care.folder import TableFolder, attempt
from rft_data.core.digests import UNDIGESTED
from tests.rft_data.buffer.care.conftest import make_row, newest_manifest, stored

FLIPS = 120


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """64 rows of 400 tokens in one file, most of whose bytes are values."""
    rng = np.random.default_rng(5)
    rows = [
        make_row(
            number,
            token_ids=rng.integers(1 << 17, size=400).tolist(),
            action_mask=[0] * 40 + [1] * 360,
            logprobs=[0.0] * 40 + (-rng.random(360)).tolist(),
            prompt_length=40,
            version_spans=((3, 40, 400),),
            completion_text=" ".join(str(rng.random()) for _ in range(60)),
        )
        for number in range(64)
    ]
    with Buffer(tmp_path / "wide") as buffer:
        assert buffer.append(rows).stored == 64
    return tmp_path / "wide"


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))


def flipped_copies(root: Path, table: str, rng: np.random.Generator, n: int) -> list[Examined]:
    """`n` copies of a table, each with one random bit of one data file flipped, looked at."""
    folders, copies = [], Path(mkdtemp(dir=root))
    for number in range(n):
        home = copies / str(number)
        shutil.copytree(root / f"{table}.lance", home / f"{table}.lance")
        files = sorted((home / f"{table}.lance/data").glob("*.lance"))
        path = files[int(rng.integers(len(files)))]
        flip(path, int(rng.integers(8 * path.stat().st_size)))
        folders.append(TableFolder(home, table))
    return as_they_are(folders, deep=True)


def read_again(found: Examined, names: list[str]) -> pa.Table | None:
    """What a plain scan gives; None when it fails, or would not be survived."""
    head = found.folder.head
    assert head is not None
    return None if found.faults else attempt(lambda: head.dataset.to_table(columns=names))


def changed_rows(original: pa.Table, found: Examined) -> set[int]:
    """Rows that a plain scan gives back with other values than were written."""
    names = [n for n in original.column_names if n not in UNDIGESTED or n in ("seq", "digest")]
    now = read_again(found, names)
    if now is None:
        return set()
    changed = set()
    for name in names:
        before, after = (table[name].combine_chunks() for table in (original, now))
        if not after.equals(before):
            changed |= {
                row for row in range(len(before)) if not after[row : row + 1].equals(before[row : row + 1])
            }
    return changed


@pytest.mark.heavy
def test_every_flip_that_changes_a_value_is_found(wide: Path) -> None:
    original, rng = stored(wide, "experiences"), np.random.default_rng(1)
    harmful = 0
    for _ in range(5):
        for found in flipped_copies(wide, "experiences", rng, FLIPS // 5):
            changed = changed_rows(original, found)
            lost = {int(row) for rows in found.lost_rows().values() for row in rows}
            assert changed <= set(found.contents.bad) | lost
            harmful += bool(changed)
    assert harmful >= FLIPS // 2


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(2))
def test_repair_after_flips_keeps_every_row_that_is_sound(root: Path, seed: int) -> None:
    original, rng = stored(root, "experiences"), np.random.default_rng(100 + seed)
    for path in sorted((root / "experiences.lance/data").glob("*.lance"))[:3]:
        flip(path, int(rng.integers(8 * path.stat().st_size)))
    [found] = examine_each([TableFolder(root, "experiences")], deep=True)
    gone = set(found.contents.bad) | {int(i) for rows in found.lost_rows().values() for i in rows}
    gone -= {row for row, (kind, _) in found.contents.bad.items() if kind == "seq"}
    done = repair(root)
    assert set(done.removed.get("experiences", {})) == gone
    keep = np.array([row for row in range(original.num_rows) if row not in gone], np.int64)
    now = stored(root, "experiences")
    names = [name for name in original.column_names if name != "created_at"]
    assert now.select(names).equals(original.take(pa.array(keep)).select(names))
    assert not verify(root).damaged
    assert not repair(root).changed
    with Buffer(root) as buffer:
        assert buffer.append([make_row(500)]).seqs == (original.num_rows,)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["leases", "payloads", "tasks", "consumed"])
def test_flips_in_small_tables_that_break_their_own_ids_are_found(root: Path, table: str) -> None:
    """What carries a hash of itself: the rest of these tables' columns has none to check."""
    checked = {
        "leases": ["seqs", "digest"],
        "payloads": ["payload_id", "data", "size"],
        "tasks": ["task_id", "messages", "answer", "metadata"],
        "consumed": ["lease_id", "run_id", "consumer", "step"],
    }[table]
    original, rng = stored(root, table).select(checked), np.random.default_rng(7)
    harmful = 0
    for found in flipped_copies(root, table, rng, 60):
        now = read_again(found, checked)
        if now is None or not now.equals(original):
            assert found.contents.bad or found.contents.faults or found.faults
            harmful += 1
    assert harmful > 3


@pytest.mark.slow
def test_a_flip_in_a_manifest_is_found_or_changes_nothing(root: Path) -> None:
    original, rng = stored(root, "experiences"), np.random.default_rng(3)
    path = sorted((root / "experiences.lance/_versions").glob("*.manifest"))[0]
    sound = path.read_bytes()
    for _ in range(6):
        flip(path, int(rng.integers(8 * len(sound))))
        report = verify(root)
        if not report.damaged:
            assert stored(root, "experiences").equals(original)
        path.write_bytes(sound)


@pytest.mark.heavy
def test_repair_after_a_flip_in_a_manifest_loses_nothing(root: Path, pristine: Path) -> None:
    """Sound files under a wrong manifest: the version before tells which of the two is at fault."""
    original, rng = stored(pristine, "experiences"), np.random.default_rng(11)
    name = newest_manifest(pristine, "experiences").relative_to(pristine)
    size, mended = (pristine / name).stat().st_size, 0
    for _ in range(6):
        shutil.rmtree(root)
        shutil.copytree(pristine, root)
        flip(root / name, int(rng.integers(8 * size)))
        if verify(root).damaged:
            repair(root)
            mended += 1
        assert stored(root, "experiences").equals(original)
    assert mended > 1
