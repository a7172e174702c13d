"""Commits whose manifest is gone, and repairs that are killed: no acknowledged row is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.care import repair, verify
from rft_data.buffer.care.folder import TableFolder
from rft_data.core import failpoints
from rft_data.core.errors import IntegrityError
from tests.rft_data.buffer.care.conftest import RUN, data_file, make_row, newest_manifest, stored

ROWS = 12

pytestmark = pytest.mark.usefixtures("decoded_here")


@pytest.fixture(scope="session")
def bare_pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three commits of four rows that no other table names; metrics beside them."""
    root = tmp_path_factory.mktemp("bare") / "buffer"
    with Buffer(root) as buffer:
        for start in range(0, ROWS, 4):
            buffer.append([make_row(number) for number in range(start, start + 4)])
            metric = {"run_id": RUN, "role": "run", "step": start, "key": "reward", "value": 0.5}
            buffer.add_rows("metrics", [metric])
    return root


@pytest.fixture
def bare(bare_pristine: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(bare_pristine, tmp_path / "bare"))


def ids(root: Path) -> list[str]:
    with Buffer(root, read_only=True) as buffer:
        return list(buffer.read("experiences", ["experience_id"]).column(0).to_pylist())


ALL_IDS = [make_row(number).experience_id for number in range(ROWS)]


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lose_newest(root: Path) -> None:
    newest_manifest(root, "experiences").unlink()


def lose_hint_too(root: Path) -> None:
    lose_newest(root)
    (root / "experiences.lance/_versions/latest_version_hint.json").unlink()


def lose_two(root: Path) -> None:
    lose_newest(root)
    lose_newest(root)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lose_newest, 4),
        pytest.param(lose_hint_too, 4, marks=pytest.mark.slow),
        pytest.param(lose_two, 8, marks=pytest.mark.slow),
    ],
)
def test_a_manifest_that_is_gone_is_damage_and_repair_puts_its_rows_back(
    bare: Path, damage: Callable[[Path], None], lost: int
) -> None:
    damage(bare)
    (finding,) = verify(bare).damage
    assert (finding.kind, finding.table) == ("missing_manifest", "experiences")
    assert finding.rows == ((ROWS - lost, ROWS - 1),)
    if damage is not lose_hint_too:
        with pytest.raises(IntegrityError, match="newest manifest is of version"):
            Buffer(bare)
    assert repair(bare).recovered["experiences"] == lost
    assert ids(bare) == ALL_IDS
    assert not repair(bare).changed
    with Buffer(bare) as buffer:
        assert buffer.append([make_row(100)]).seqs == (ROWS,)


@pytest.mark.slow
@pytest.mark.parametrize(("buffer", "table"), [("bare", "metrics"), ("root", "leases")])
def test_a_small_table_whose_newest_manifest_is_gone_gets_its_rows_back(
    buffer: str, table: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(buffer)
    before = stored(folder, table).sort_by("step").to_pylist()
    newest_manifest(folder, table).unlink()
    assert len(stored(folder, table)) == len(before) - 1
    assert [(f.kind, f.table) for f in verify(folder).damage] == [("missing_manifest", table)]
    assert repair(folder).recovered[table] == 1
    assert stored(folder, table).sort_by("step").to_pylist() == before
    assert not repair(folder).changed


@pytest.mark.slow
def test_a_commit_whose_every_file_is_gone_is_damage_once(bare: Path) -> None:
    newest = data_file(bare, "experiences", -1)
    newest_manifest(bare, "experiences").unlink()
    newest.unlink()
    assert [f.kind for f in verify(bare).damage] == ["missing_manifest"]
    repair(bare)
    assert not verify(bare).damaged
    assert ids(bare) == ALL_IDS[:-4]
    with Buffer(bare) as buffer:
        assert buffer.append([make_row(100)]).stored == 1


@pytest.mark.slow
def test_a_file_of_a_killed_write_is_no_damage(bare: Path) -> None:
    with (
        Buffer(bare) as buffer,
        failpoints.armed("store.commit", 1),
        pytest.raises(OSError, match="failpoint"),
    ):
        buffer.append([make_row(200)])
    report = verify(bare)
    assert not report.damaged
    assert report.of("orphan_file")


# --- killed repairs ---------------------------------------------------------------------------------


def newest_manifest_is_empty(root: Path) -> None:
    empty(newest_manifest(root, "experiences"))


def experiences_fall_back_and_metrics_start_anew(root: Path) -> None:
    """And a data file is cut, whose rows are lost for good."""
    path = data_file(root, "experiences", 0)
    path.write_bytes(path.read_bytes()[:-40])
    for back in (0, 1):
        empty(newest_manifest(root, "experiences", back=back))
    for manifest in TableFolder(root, "metrics").manifests:
        empty(manifest.path)


def experiences_start_anew_and_metrics_miss_a_manifest(root: Path) -> None:
    for manifest in TableFolder(root, "experiences").manifests:
        empty(manifest.path)
    newest_manifest(root, "metrics").unlink()


class Copier(failpoints.Failpoint):
    """Copies the buffer at each step of its repair: what a kill at this step would leave."""

    def __init__(self, root: Path) -> None:
        super().__init__("repair.step", 0, "")
        self._root = root
        self._last: object = None
        self.copies: list[Path] = []

    def hit(self, name: str) -> None:
        tables = self._root.glob("*.lance/**/*")
        now = [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in tables if path.is_file()]
        if name == self.pattern and now != self._last:
            copy = self._root.with_name(f"killed-{len(self.copies)}")
            self.copies.append(Path(shutil.copytree(self._root, copy)))
            self._last = now


@pytest.mark.slow
def test_a_repair_that_was_interrupted_must_be_finished_before_the_buffer_opens(bare: Path) -> None:
    newest_manifest_is_empty(bare)
    with failpoints.armed("repair.step", 4), pytest.raises(OSError, match="failpoint"):
        repair(bare)
    assert TableFolder(bare, "experiences").bad_heads == ()  # the manifest has moved aside already
    assert "repair" in {finding.kind for finding in verify(bare).damage}
    with pytest.raises(IntegrityError, match=r"repair .* was interrupted"):
        Buffer(bare)
    repair(bare)
    assert ids(bare) == ALL_IDS
    assert not repair(bare).changed


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (experiences_fall_back_and_metrics_start_anew, {0, 1, 2, 3}),
        (experiences_start_anew_and_metrics_miss_a_manifest, set[int]()),
    ],
)
def test_no_row_is_lost_wherever_a_repair_is_killed(
    bare: Path, damage: Callable[[Path], None], lost: set[int]
) -> None:
    damage(bare)
    copier = Copier(bare)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "_armed", copier)
        repair(bare)
    assert len(copier.copies) > 4
    kept = [name for seq, name in enumerate(ALL_IDS) if seq not in lost]
    for root in [bare, *copier.copies]:
        repair(root)  # checks afterwards that no damage is left
        assert ids(root) == kept
        assert sorted(stored(root, "metrics")["step"].to_pylist()) == [0, 4, 8]
        with Buffer(root) as buffer:
            assert buffer.lost_rows() == lost
            again = buffer.append([make_row(number) for number in range(4, ROWS)])
            assert (again.stored, again.seqs) == (0, tuple(range(4, ROWS)))


_KILLED_REPAIRS = """
import os, sys
from pathlib import Path
import lance, lance.file
from rft_data.buffer.care import repair
from rft_data.core import failpoints
for at in range(2, 100, 3):
    child = os.fork()  # of a process that has not used Lance yet
    if child == 0:
        with failpoints.armed("repair.step", at, "kill"):
            repair(Path(sys.argv[1]))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        print(at)
        break
"""


@pytest.mark.heavy
def test_no_row_is_lost_when_repairs_are_killed(bare: Path) -> None:
    """SIGKILL, each time at a later step, until one comes through."""
    newest_manifest_is_empty(bare)
    command = [sys.executable, "-c", _KILLED_REPAIRS, str(bare)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) > 4
    assert ids(bare) == ALL_IDS
    assert not verify(bare).damaged
