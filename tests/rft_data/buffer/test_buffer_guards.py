"""Who may write, and what a write may bring: what a review of the buffer found."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.core import failpoints
from rft_data.core.codec import to_table
from rft_data.core.errors import (
    BusyError,
    ConflictError,
    FencedError,
    IntegrityError,
    RftError,
    RowError,
    UnknownComponentError,
)
from rft_data.core.groups import GroupResult, Played, Ticket
from rft_data.core.rows import TaskKey, now
from rft_data.core.schema import ANNOTATIONS, INCOMING
from rft_data.loop.closing import group_results
from rft_data.sampler.ledger import Ledger
from tests.rft_data.conftest import make_experience

METRIC = {"run_id": "r", "role": "run", "step": 0, "key": "k", "value": 0.0}


def kept(number: int, *seqs: int) -> GroupResult:
    ticket = Ticket(f"run/0-{number:08d}", number, 0)
    return GroupResult(ticket, TaskKey("a", "t"), (1.0,) * len(seqs), "arrived", 0, seqs)


def verdicts(**changes: object) -> pa.Table:
    row = {
        "seq": 0,
        "experience_id": make_experience(0).experience_id,
        "pipeline_hash": "p",
        "verdict": "kept",
        "dropped_by": "",
        "reason": "",
        "advantage": [1.0],
        "shaped_reward": None,
        "masked": None,
        "stats": {},
        "created_at": now(),
    }
    return to_table([{**row, **changes}], ANNOTATIONS)


@pytest.mark.slow
def test_nothing_is_written_after_close(tmp_path: Path) -> None:
    first = Buffer(tmp_path / "b")
    first.append([make_experience(0)])
    ledger = Ledger(first, "run", 0)
    first.close()
    with Buffer(tmp_path / "b") as second:
        for write in (
            lambda: first.add_rows("metrics", [METRIC]),
            lambda: ledger.grant("trainer", 0, 0, [kept(0, 0)]),
        ):
            with pytest.raises(RftError, match="is closed; nothing is stored"):
                write()
        assert second.counts()["leases"] == second.counts()["metrics"] == 0


@pytest.mark.slow
def test_a_forked_child_neither_writes_nor_keeps_the_lock(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            buffer.add_rows("metrics", [METRIC])
        except RftError as err:
            code = 0 if "was forked from" in str(err) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(BusyError, match="owned by another process"):  # the child's end did not free it
        Buffer(buffer.root)
    buffer.add_rows("metrics", [METRIC])


@pytest.mark.slow
def test_an_owner_whose_lock_was_removed_stays_fenced_and_stores_nothing(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    buffer.add_rows("metrics", [METRIC])
    (buffer.root / "owner.lock").unlink()
    with Buffer(buffer.root) as other:
        other.append([make_experience(1)])
        for number in (2, 3):
            with pytest.raises(FencedError, match="nothing of this call is stored"):
                buffer.append([make_experience(number)])
        with pytest.raises(FencedError, match="nothing of this call is stored"):
            buffer.add_rows("metrics", [METRIC])
    with Buffer(buffer.root) as third:  # also after the other one has ended
        with pytest.raises(FencedError):
            buffer.append([make_experience(2)])
        assert [third.append([make_experience(n)]).stored for n in range(3)] == [0, 0, 1]
        assert third.counts()["metrics"] == 1


@pytest.mark.slow
def test_a_commit_on_its_way_while_the_lock_is_removed_and_taken_is_stored_whole_or_not_at_all(
    buffer: Buffer,
) -> None:
    """The other owner comes between the look at the lock and the commit."""
    buffer.append([make_experience(0)])
    others: list[Buffer] = []

    class Intruder(failpoints.Failpoint):
        def hit(self, name: str) -> None:
            if name == "store.commit" and not others:
                (buffer.root / "owner.lock").unlink()
                others.append(Buffer(buffer.root))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "_armed", Intruder("", 0, ""))
        for number in (1, 2):
            with pytest.raises(FencedError, match="nothing of this call is stored"):
                buffer.append([make_experience(number)])
    (other,) = others
    assert other.append([make_experience(n) for n in range(4)]).stored == 3
    other.close()
    with Buffer(buffer.root) as opened:
        assert len(opened) == 4


def test_a_lock_that_is_a_link_or_no_lock_is_refused(tmp_path: Path) -> None:
    root, target = tmp_path / "b", tmp_path / "precious"
    Buffer(root).close()
    target.write_text("precious")
    lock = root / "owner.lock"
    lock.unlink()
    lock.symlink_to(target)
    with pytest.raises(RftError, match="is a symbolic link"):
        Buffer(root)
    lock.unlink()
    lock.write_bytes(b"\xff\xfe")
    with pytest.raises(RftError, match="is not a lock of rft-data"):
        Buffer(root)
    assert target.read_text() == "precious"


def test_tables_without_their_schema_version_are_refused(tmp_path: Path) -> None:
    Buffer(tmp_path / "b").close()
    with Buffer(tmp_path / "b") as buffer:
        buffer.append([make_experience(0)])
    (tmp_path / "b" / "schema_version").unlink()
    with pytest.raises(IntegrityError, match="no file 'schema_version'"):
        Buffer(tmp_path / "b")


def test_what_a_caller_does_to_its_memory_later_changes_nothing(buffer: Buffer) -> None:
    ids = np.array([5, 6, 7, 8], np.int32)
    table = to_table([make_experience(0)], INCOMING)
    column = pa.ListArray.from_arrays(pa.array([0, 4], pa.int32()), pa.array(ids))
    table = table.set_column(INCOMING.get_field_index("token_ids"), INCOMING.field("token_ids"), column)
    buffer.append(table)
    ids[:] = 99
    assert buffer.take([0]).column("token_ids").to_pylist() == [[5, 6, 7, 8]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq": 1}, "row numbers outside 0 to 0"),
        ({"seq": -1}, "row numbers outside"),
        ({"verdict": "liked"}, "a verdict other than dropped, kept"),
        ({"advantage": [float("nan")]}, "an advantage that is null, NaN or infinite"),
    ],
)
def test_annotations_that_judge_nothing_are_refused(buffer: Buffer, changes: dict, message: str) -> None:
    buffer.append([make_experience(0)])
    with pytest.raises(RowError, match=message):
        buffer.annotate(verdicts(**changes))
    assert buffer.counts()["annotations"] == 0
    buffer.annotate(verdicts())
    assert buffer.counts()["annotations"] == 1


def test_a_group_of_which_the_door_refused_a_row_is_cancelled(buffer: Buffer) -> None:
    members = [make_experience(0), make_experience(1, reward=float("nan"))]
    done = buffer.append(members)
    group = Played(Ticket("run/g0", 0, 3), TaskKey("arith", "t"), "arrived", (0,), rows=2)
    [result] = group_results([group], done.rows, verdicts())
    assert (result.outcome, result.seqs) == ("cancelled", ())
    assert result.tokens == sum(members[0].action_mask)


def test_a_retired_group_is_never_granted(buffer: Buffer) -> None:
    ledger = Ledger(buffer, "run", 0)
    ledger.retire("trainer", ["run/0-00000000"], "stale")
    ledger.retire("", ["run/0-00000001"], "lost in repair")
    for number, why in ((0, "stale"), (1, "lost in repair")):
        with pytest.raises(ConflictError, match=f"retired \\({why}\\)"):
            ledger.grant("trainer", 0, 0, [kept(number, 2 * number, 2 * number + 1)])
    assert ledger.grant("auditor", 0, 0, [kept(0, 0, 1)]).seqs == (0, 1)


def test_a_consumer_that_was_replaced_is_fenced_and_its_lease_goes_to_the_next(buffer: Buffer) -> None:
    ledger = Ledger(buffer, "run", 0)
    old = ledger.attach("trainer")
    lease = ledger.grant("trainer", 0, 0, [kept(0, 0, 1)], epoch=old)
    new = Ledger(buffer, "run", 1).attach("trainer")
    ledger = Ledger(buffer, "run", 1)
    for late in (
        lambda: ledger.grant("trainer", 1, 0, [kept(1, 2)], epoch=old),
        lambda: ledger.release(lease, "late", epoch=old),
        lambda: ledger.find("trainer", 0, epoch=old),
    ):
        with pytest.raises(FencedError, match="holds epoch 1, the current epoch is 2"):
            late()
    found = ledger.find("trainer", 0, epoch=new)
    assert (found.seqs, found.epoch) == (lease.seqs, new)


def test_released_groups_may_be_leased_again_up_to_the_cap(buffer: Buffer) -> None:
    ledger = Ledger(buffer, "run", 0, max_uses=2)
    first = ledger.grant("trainer", 0, 0, [kept(0, 0)])
    ledger.grant("trainer", 1, 0, [kept(0, 0)])
    with pytest.raises(ConflictError, match="may be used 2 times"):
        ledger.grant("trainer", 2, 0, [kept(0, 0)])
    ledger.release(first, "given back")
    ledger.release(first, "given back")
    ledger.grant("trainer", 2, 0, [kept(0, 0)])
    ledger.consume("trainer", 2)
    with pytest.raises(ConflictError, match="part of a checkpoint"):
        ledger.release(ledger.leases("trainer")[0], "too late")


@pytest.mark.slow
def test_a_read_of_no_rows_has_none(buffer: Buffer) -> None:
    buffer.append([make_experience(i) for i in range(3)])
    assert buffer.read("experiences", limit=0).num_rows == 0
    assert buffer.read("experiences", limit=2).num_rows == 2


def test_a_table_or_column_that_does_not_exist_is_named_with_those_that_do(buffer: Buffer) -> None:
    with pytest.raises(UnknownComponentError, match=r"no table 'experience'; did you mean 'experiences'\?"):
        buffer.read("experience")
    for read in (buffer.read, lambda name, columns: buffer.tail(name, 3, columns)):
        with pytest.raises(UnknownComponentError, match=r"no column 'rewrd'; did you mean 'reward'\?"):
            read("experiences", ["seq", "rewrd"])
