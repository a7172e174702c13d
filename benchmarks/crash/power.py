"""The power goes, again and again: one life is recorded, and the disk is rebuilt as a power cut may leave it.

The life is a run of `run_start.py` under `durability: power`. At each cut, what no fsync had forced down is
lost, as `disk.cuts` says; the outside ledger, which says what had been acknowledged by then, is kept.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.crash.check import Findings, check
from benchmarks.crash.children import start
from benchmarks.crash.disk import File, Folder, cuts, left_over
from benchmarks.crash.outside import LEDGER_FILE
from benchmarks.crash.replay import Disk
from benchmarks.crash.trace import calls, record
from rft_data.buffer.care.repair import repair
from rft_data.core.errors import IntegrityError

_ROOT = Path(__file__).parents[2]
_CHECK_S = 90.0


@dataclass
class PowerReport:
    """Findings after all cuts."""

    cuts: int = 0
    """Disks that were rebuilt and checked."""
    ways: dict[str, int] = field(default_factory=dict)
    """Cuts by what was lost."""
    acked: int = 0
    """Rows acknowledged, over all cuts."""
    repaired: int = 0
    """Disks on which the buffer asked for `rft buffer repair` first."""
    lost: int = 0
    duplicated: int = 0
    torn_groups: int = 0
    trained_twice: int = 0
    faults: int = 0
    """Anything else that should not be; see stderr."""
    unseen: list[str] = field(default_factory=list)
    """Forgotten fsyncs that no cut has shown."""

    @property
    def clean(self) -> bool:
        """Whether nothing wrong was found."""
        return not (self.lost or self.duplicated or self.torn_groups or self.trained_twice or self.faults)

    @property
    def sound(self) -> bool:
        """Whether every promise held, this program's own included."""
        return self.clean and not self.unseen

    def as_json(self) -> str:
        """The last line of stdout."""
        return json.dumps({**asdict(self), "sound": self.sound})


@dataclass(frozen=True)
class Life:
    """A life that was recorded whole."""

    root: Path
    record: Path
    changes: list[int]
    """Events that change what is on the disk, or what of it is safe."""
    notes: list[int]
    """Events that note an acknowledgement or another fact in the outside ledger."""


def record_life(folder: Path, seed: int) -> Life:
    """Let a run live in `folder` until its second checkpoint.

    Raises: RuntimeError if it ends badly, or if the record, replayed, is not the folder that it has left.
    """
    root, recorded = folder / "life", folder / "strace.txt"
    root.mkdir(parents=True)
    status = record(
        [sys.executable, "-m", "benchmarks.crash.recorded", str(root), str(seed)], recorded, _ROOT
    )
    if status:
        raise RuntimeError(f"the life to be recorded ended with status {status}")
    disk = Disk(root)
    life = Life(root, recorded, [], [])
    noted = 0
    for place, (_, event) in enumerate(disk.events(calls(recorded))):
        before = disk.changes
        event()
        if disk.changes != before:
            life.changes.append(place)
        if len(_ledger(disk)) != noted:
            noted = len(_ledger(disk))
            life.notes.append(place)
    differing = sorted(_differing(disk.top, root))
    if differing:
        raise RuntimeError(f"the record is not what happened: {differing[:5]} are other than replayed")
    return life


def cut_power(folder: Path, count: int, seed: int, forget: Sequence[str]) -> PowerReport:
    """Record a life in `folder` and cut its power `count` times.

    `forget`: patterns of paths; for each the life is cut again as if there were no fsync of such a path.
    """
    life = record_life(folder, seed)
    report = cut_life(life, folder / "cuts", count, seed)
    for number, pattern in enumerate(forget if report.clean else ()):
        if cut_life(life, folder / f"forgotten-{number}", count, seed, pattern).clean:
            report.unseen.append(pattern)
    return report


def cut_life(life: Life, folder: Path, count: int, seed: int, forgotten: str = "") -> PowerReport:
    """Cut the power of a life `count` times; ends at the first finding, whose disk is left in `folder`.

    Half of the cuts come right behind an acknowledgement.
    """
    rng = np.random.default_rng(seed)
    places = sorted([*rng.choice(life.changes, count - count // 2), *rng.choice(life.notes, count // 2)])
    report, ways = PowerReport(), Counter[str]()
    disk = Disk(life.root, forgotten)
    events, done = disk.events(calls(life.record)), 0
    for number, place in enumerate(places):
        for _, event in events[done : place + 1]:
            event()
        done = place + 1
        kinds = cuts(rng)
        way = list(kinds)[number % len(kinds)]
        ways[way] += 1
        target = folder / f"cut-{number}"
        left_over(disk.top, kinds[way], target)
        (target / LEDGER_FILE).write_bytes(_ledger(disk))
        if not _take(report, target, f"cut {number} at event {place}, {way}"):
            break
        shutil.rmtree(target)
    report.ways = dict(ways)
    return report


def _differing(folder: Folder, path: Path) -> set[str]:
    there = {entry.name: entry for entry in path.iterdir()}
    found = {str(path / name) for name in there.keys() ^ folder.content.keys()}
    for name in there.keys() & folder.content.keys():
        node = folder.content[name]
        if isinstance(node, Folder):
            found |= _differing(node, there[name])
        elif not _same(there[name].read_bytes(), node.content, in_order=name != LEDGER_FILE):
            found.add(str(there[name]))
    return found


def _same(one: bytes, other: bytes, *, in_order: bool) -> bool:
    """Whether two files are the same; threads side by side write the ledger's lines in any order."""
    return one == other if in_order else sorted(one.splitlines()) == sorted(other.splitlines())


def _ledger(disk: Disk) -> bytes:
    """The outside ledger at this moment: no power cut reaches it."""
    node = disk.top.content.get(LEDGER_FILE)
    return bytes(node.content) if isinstance(node, File) else b""


def _take(report: PowerReport, target: Path, where: str) -> bool:
    """Check a disk in a process of its own; False if it is not sound."""
    path = target.with_suffix(".json")
    child = start(lambda: path.write_text(json.dumps(_judged(target))))
    if child.wait(_CHECK_S) is None:
        child.kill()
    judged = json.loads(path.read_text()) if path.is_file() else {"faults": ["the check did not end"]}
    report.cuts += 1
    report.repaired += judged.pop("repaired", False)
    found = Findings(**judged)
    report.acked += found.acked
    for name in ("lost", "duplicated", "torn_groups", "trained_twice"):
        setattr(report, name, getattr(report, name) + getattr(found, name))
    report.faults += len(found.faults)
    if not found.sound:
        print(f"{where}: {json.dumps(found.as_dict(), indent=1)}\n{target}", file=sys.stderr)
    return found.sound


def _judged(root: Path) -> dict[str, object]:
    """Open the buffer as a restarted run would, with the repair it asks for, and compare."""
    repaired = False
    try:
        try:
            found = check(root)
        except IntegrityError as err:
            if "rft buffer repair" not in str(err):
                raise
            repair(root / "buffer")
            repaired, found = True, check(root)
    except Exception:  # noqa: BLE001 - whatever it is, the reopened buffer is not sound
        found = Findings(faults=[traceback.format_exc()[-2000:]])
    return {**found.as_dict(), "repaired": repaired}
