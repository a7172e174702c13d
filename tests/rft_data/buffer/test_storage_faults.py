"""Every storage call of a fixed script fails once, before and after its commit took effect."""

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import lance
import pytest

from rft_data.buffer import Buffer, maintenance
from rft_data.buffer.durability import Durability
from rft_data.core import failpoints
from rft_data.core.canonical import content_id
from rft_data.core.codec import to_table
from rft_data.core.errors import IntegrityError
from rft_data.core.failpoints import armed
from rft_data.core.files import read_manifest
from rft_data.core.groups import GroupResult, Lease, Ticket
from rft_data.core.rows import Feedback, PreferencePair, Task, now
from rft_data.core.schema import ANNOTATIONS, INCOMING, TABLES
from rft_data.sampler import make_sampler
from rft_data.sampler.ledger import Ledger
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.conftest import make_experience
from tests.waiting import wait_for

PIPELINE = "pipeline"
NEWEST = {"annotations": ("pipeline_hash", "seq"), "metrics": ("run_id", "role", "step", "key")}
"""Tables without ids whose newest row counts: a retry may write one twice."""
TASK = Task("a", ({"role": "user", "content": "1+1="},), "2")


class World:
    """A buffer with its ledger and registry."""

    def __init__(self, root: Path, durability: Durability = "process") -> None:
        self.root = root
        self.buffer = Buffer(root / "buffer", durability=durability)
        self.ledger = Ledger(self.buffer, "run", 0)
        self.versions = VersionRegistry(self.buffer, "run", root / "weights")


def annotate(world: World, seqs: list[int], advantage: float) -> None:
    rows = [
        {
            "seq": seq,
            "experience_id": make_experience(seq).experience_id,
            "pipeline_hash": PIPELINE,
            "verdict": "kept",
            "dropped_by": "",
            "reason": "",
            "advantage": [advantage + seq],
            "shaped_reward": None,
            "masked": None,
            "stats": {},
            "created_at": now(),
        }
        for seq in seqs
    ]
    world.buffer.annotate(to_table(rows, ANNOTATIONS))


def result(ordinal: int, seqs: tuple[int, ...]) -> GroupResult:
    return GroupResult(Ticket(f"run/0-{ordinal:08d}", ordinal, 0), TASK.key, (1.0,), "arrived", 0, seqs)


def metric(world: World) -> None:
    row = {"run_id": "run", "role": "trainer", "step": 0, "key": "loss", "value": 1.0}
    world.buffer.add_rows("metrics", [row])


def grant(world: World, step: int, ordinal: int, seqs: tuple[int, ...]) -> None:
    """As a sampler does it: what is granted already is taken."""
    if world.ledger.find("trainer", step) is None:
        world.ledger.grant("trainer", step, 0, [result(ordinal, seqs)])


def release(world: World, step: int) -> None:
    lease = world.ledger.find("trainer", step)
    if lease is not None:
        world.ledger.release(lease, "given back")


def save(directory: Path) -> None:
    (directory / "model.bin").write_bytes(b"weights")


def preference() -> PreferencePair:
    answers = [[{"role": "assistant", "content": text}] for text in ("2", "3")]
    return PreferencePair("human", "a", "t", *answers, messages=TASK.messages)


def feedback() -> Feedback:
    return Feedback(make_experience(0).experience_id, "anna", "score", 0.5)


SCRIPT: list[tuple[str, Callable[[World], Any]]] = [
    ("append", lambda w: w.buffer.append([make_experience(i) for i in range(4)])),
    ("append_table", lambda w: w.buffer.append(to_table([make_experience(i) for i in (2, 4, 5)], INCOMING))),
    ("append_again", lambda w: w.buffer.append([make_experience(1), make_experience(6)])),
    ("append_bad", lambda w: w.buffer.append([make_experience(9, reward=float("nan")), make_experience(7)])),
    ("annotate", lambda w: annotate(w, [0, 1, 2, 3], 0.5)),
    ("annotate_again", lambda w: annotate(w, [1, 4], -0.5)),
    ("add_rows", metric),
    ("add_tasks", lambda w: w.buffer.add_tasks([TASK])),
    ("add_preferences", lambda w: w.buffer.add_preferences([preference()])),
    ("add_feedback", lambda w: w.buffer.add_feedback([feedback()])),
    ("add_payload", lambda w: w.buffer.add_payload(b"image", "image/png")),
    ("grant", lambda w: grant(w, 0, 0, (0, 1))),
    ("grant_next", lambda w: grant(w, 1, 1, (2, 3))),
    ("release", lambda w: release(w, 1)),
    ("grant_again", lambda w: grant(w, 1, 1, (2, 3))),
    ("retire", lambda w: w.ledger.retire("trainer", ["run/0-00000002"], "stale")),
    ("consume", lambda w: w.ledger.consume("trainer", 1)),
    ("publish", lambda w: w.versions.publish(0, save)),
    ("issue", lambda w: w.versions.issue(1)),
    ("compact", lambda w: w.buffer.compact()),
    ("append_late", lambda w: w.buffer.append([make_experience(i) for i in (0, 8)])),
]
NAMES = [name for name, _ in SCRIPT]
LIKE_ANOTHER = ("annotate_again", "grant_next", "grant_again")
"""Their storage calls are those of `annotate` and `grant`."""
IN_MEMORY = 2
"""So many operations before the failing one run in its world; those before them, in one that was closed."""
POINTS = (
    *("store.write", "store.commit", "store.committed", "store.synced"),
    *("append.ack", "lease.granted", "settle.consume", "settle.consumed"),
    *("publish.written", "publish.renamed", "publish.recorded"),
    *("compact.merge", "compact.merged", "compact.cleaned"),
)


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often each failpoint, and Lance's commit, is passed."""
    passes: Counter[str] = Counter()
    commit = lance.LanceDataset.commit

    def counting(*args: Any, **kwargs: Any) -> Any:
        passes["commit"] += 1
        return commit(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lance.LanceDataset, "commit", counting)
        patch.setattr(failpoints, "_armed", SimpleNamespace(hit=lambda name: passes.update([name])))
        yield passes


@contextlib.contextmanager
def commit_raises(at: int) -> Iterator[failpoints.Failpoint]:
    """Lance itself raises from the N-th commit, which took effect all the same."""
    commit = lance.LanceDataset.commit
    point = failpoints.Failpoint("commit", at, "error")

    def failing(*args: Any, **kwargs: Any) -> Any:
        made = commit(*args, **kwargs)
        point.hit("commit")
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lance.LanceDataset, "commit", failing)
        yield point


def state(world: World) -> dict[str, Any]:
    """What the world's memory says."""
    ledger, versions = world.ledger, world.versions
    leases = ledger.leases("trainer")
    return {
        "leases": {(lease.step, lease.seqs, lease.group_ids, ledger.is_consumed(lease)) for lease in leases},
        "retired": ledger.retired("trainer"),
        "consumed": ledger.consumed("trainer"),
        "versions": {version: versions.optimizer_step(version) for version in range(versions.latest + 1)},
        "tasks": set(world.buffer.task_keys()),
        "rows": world.buffer.take(range(len(world.buffer))).to_pylist(),
        "advantages": advantages(world.buffer),
    }


def advantages(buffer: Buffer) -> list[Any]:
    """What `leased` gives for the first rows, None where it refuses."""
    values = []
    for seq in range(min(len(buffer), 5)):
        try:
            table = buffer.leased(Lease("x", 0, 0, 0, (seq,), (), content_id([seq])), PIPELINE).table
            values.append(table.column("advantage")[0].as_py())
        except IntegrityError:
            values.append(None)
    return values


def stored_state(world: World) -> dict[str, Any]:
    """The same from the tables alone, as another process sees it."""
    with Buffer(world.buffer.root, read_only=True) as reader:
        other = World.__new__(World)
        other.buffer = reader
        other.ledger = Ledger(reader, "run", 0)
        other.versions = VersionRegistry(reader, "run", world.root / "weights")
        return state(other)


def tables(buffer: Buffer) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, without the time; only the newest where the newest counts."""
    found = {}
    for name in TABLES:
        rows = [
            {key: value for key, value in row.items() if key != "created_at"}
            for row in buffer.read(name).to_pylist()
        ]
        if name in NEWEST:
            rows = list({tuple(row[key] for key in NEWEST[name]): row for row in rows}.values())
        found[name] = rows
    return found


def play(world: World, name: str) -> None:
    """One operation, and the compaction that the thread of appends may do after it has answered."""
    try:
        dict(SCRIPT)[name](world)
    finally:
        commit = world.buffer._intake._writer
        wait_for(lambda: not commit._unfinished)


def run(world: World, names: list[str]) -> None:
    for name in NAMES:
        if name in names:
            play(world, name)


def world_before(start: Path, root: Path, name: str, durability: Durability) -> World:
    """A copy of a closed world in which the last operations before this one then run."""
    shutil.copytree(start, root)
    world = World(root, durability)
    run(world, NAMES[: NAMES.index(name)][-IN_MEMORY:])
    return world


def faulted(start: Path, root: Path, name: str, pattern: str, at: int) -> None:
    """One fault in one operation of the script, which is then retried."""
    world = world_before(start, root, name, "power" if pattern == "store.synced" else "process")
    raised = False
    with commit_raises(at) if pattern == "commit" else armed(pattern, at) as point:
        try:
            play(world, name)
        except OSError:
            raised = True
    where = f"{pattern}, pass {at}"
    assert point.passes >= at, f"{where}: it was not reached again"
    upkeep = pattern.startswith("compact.") and name != "compact"  # tried again later
    assert raised or upkeep, f"{where}: the caller is not told"
    assert state(world) == stored_state(world), f"{where}: memory and tables differ"
    if raised:
        play(world, name)
    compare(world, name, where)
    world.buffer.close()


def books(world: World) -> dict[str, Any]:
    """Memory without the time."""
    found = state(world)
    return {**found, "rows": [{k: v for k, v in row.items() if k != "created_at"} for row in found["rows"]]}


@cache
def undisturbed() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Tables and memory after each operation of the script without a fault."""
    found = {}
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        for name in NAMES:
            run(world, [name])
            found[name] = tables(world.buffer), books(world)
        world.buffer.close()
    return found


def compare(world: World, name: str, where: str) -> None:
    """The world, and the same reopened, hold what an undisturbed run holds after this operation."""
    expected, memory = undisturbed()[name]
    assert books(world) == memory, where
    world.buffer.close()
    with Buffer(world.buffer.root, read_only=True) as reader:  # which creates no table to find it empty
        assert tables(reader) == expected, where
    reopened = World(world.root)
    assert books(reopened) == memory, where
    for directory in (world.root / "weights").glob("v*"):
        read_manifest(directory)
    reopened.buffer.close()


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "COMPACT_EVERY", 2)


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name in NAMES if name not in LIKE_ANOTHER])
def test_a_failed_storage_call_is_told_and_a_retry_gives_what_an_undisturbed_run_gives(
    tmp_path: Path, name: str
) -> None:
    start = tmp_path / "start"
    world = World(start)
    run(world, NAMES[: max(NAMES.index(name) - IN_MEMORY, 0)])
    world.buffer.close()
    world = world_before(start, tmp_path / "counted", name, "power")
    with counted() as passes:
        play(world, name)
    world.buffer.close()
    assert passes["commit"] or name == "compact"
    assert set(passes) <= {*POINTS, "commit"}, "a failpoint that is not tried"
    for pattern, found in passes.items():
        for at in range(1, found + 1):
            root = tmp_path / f"{pattern}-{at}"
            faulted(start, root, name, pattern, at)
            shutil.rmtree(root)


@pytest.mark.slow
def test_compaction_keeps_the_order_after_a_commit_that_raised_and_took_effect(tmp_path: Path) -> None:
    with Buffer(tmp_path / "b") as buffer:
        ledger = Ledger(buffer, "run", 0)
        for step in range(4):
            ledger.grant("trainer", step, 0, [result(step, (step,))])
        with commit_raises(1), pytest.raises(OSError, match="failpoint"):
            ledger.release(ledger.leases("trainer")[3], "given back")
        buffer.compact()
        assert buffer.read("leases", ["kind"]).column("kind").to_pylist() == ["grant"] * 4 + ["release"]


@pytest.mark.slow
def test_a_lease_whose_grant_failed_after_its_commit_is_handed_out_and_settled_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.versions.issue(0)
    sampler = make_sampler(
        "fifo",
        {},
        ledger=world.ledger,
        versions=world.versions,
        consumer="trainer",
        groups_per_step=1,
        max_staleness=5,
    )
    for ticket in sampler.admit(3, 0):
        sampler.close(result(ticket.ordinal, (ticket.ordinal,)))
    with armed("store.committed", 1), pytest.raises(OSError, match="failpoint"):
        sampler.lease("trainer", 0, 1, 0)
    leases = []
    for step in range(3):
        lease = sampler.lease("trainer", step, 1, 0)
        assert lease is not None
        sampler.settle(lease)
        leases.append(lease)
    assert [seq for lease in leases for seq in lease.seqs] == [0, 1, 2]
    world.buffer.close()


def test_weights_given_up_are_whole_or_gone_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is killed in the middle of a deletion leaves no half folder under a final name."""

    def cut_short(folder: Path) -> None:
        (folder / "model.bin").unlink()
        raise KeyboardInterrupt

    world = World(tmp_path)
    for step in range(2):
        world.versions.publish(step, save)
    monkeypatch.setattr(shutil, "rmtree", cut_short)
    with pytest.raises(KeyboardInterrupt):
        world.versions.publish(2, save)
    for directory in (tmp_path / "weights").glob("v*"):
        read_manifest(directory)
    world.buffer.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["experiences", "leases"])
def test_a_table_whose_creation_was_killed_is_created_again(tmp_path: Path, name: str) -> None:
    Buffer(tmp_path / "b").close()
    shutil.rmtree(tmp_path / "b" / f"{name}.lance", ignore_errors=True)
    (tmp_path / "b" / f"{name}.lance" / "_transactions").mkdir(parents=True)
    with Buffer(tmp_path / "b") as buffer:
        buffer.append([make_experience(0)])
        Ledger(buffer, "run", 0).grant("trainer", 0, 0, [result(0, (0,))])
        assert (buffer.counts()["experiences"], buffer.counts()["leases"]) == (1, 1)
