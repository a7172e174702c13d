"""Readmission: rejected groups are judged again, once, and get a run id of their own."""

from pathlib import Path

import lance
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.care.repair import repair
from rft_data.buffer.care.verify import verify
from rft_data.cli.rejudge_text import readmitted_text
from rft_data.core.errors import BusyError, RecipeError
from rft_data.core.filters import Compare
from rft_data.core.rows import Feedback
from rft_data.loop.closing import stored_groups
from rft_data.run.record import LOCK_FILE
from rft_data.run.rejudge import check_not_running, readmit
from rft_data.sampler import History, make_sampler
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.weights.versions import VersionRegistry
from tests.rft_data.run.rejudge.explored import ADVANTAGES, LENIENT, STRICT, explore, pipeline

REWARDS = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [None, None], [0.5, 0.25]]
"""STRICT drops the second, third and fourth group."""
WITH_FEEDBACK = [{"feedback_mapper": {}}, *STRICT]


def again(buffer: Buffer, operators: list = LENIENT, book: str = "book"):
    return readmit(buffer, "run", book, pipeline(operators, buffer), groups_per_batch=2)


@pytest.mark.slow
def test_groups_a_later_recipe_keeps_can_be_leased(buffer: Buffer, tmp_path: Path) -> None:
    explore(buffer, REWARDS)
    found = again(buffer)
    assert (found.rejected, found.admitted, found.rows, found.still_rejected) == (3, 2, 4, 1)
    assert found.rejected_by == {"reward_range_filter": 1}
    groups = stored_groups(buffer, "book")
    assert [group.ticket.group_id for group in groups] == ["run/0-00000001", "run/0-00000002"]
    assert [group.seqs for group in groups] == [(2, 3), (4, 5)]
    ledger = Ledger(buffer, "book", 0)
    sampler = make_sampler(
        "fifo",
        {},
        ledger=ledger,
        versions=VersionRegistry(buffer, "book", tmp_path / "weights"),
        consumer=CONSUMER,
        groups_per_step=2,
        max_staleness=None,
        history=History(groups),
    )
    lease = sampler.lease(CONSUMER, 0, 2, 3)
    assert lease is not None
    batch = buffer.leased(lease, pipeline(LENIENT).pipeline_hash).table
    assert batch.column("advantage").to_pylist() == [[0.0]] * 4
    assert "explored_by: book" in readmitted_text(found)


@pytest.mark.slow
def test_the_runs_own_groups_do_not_change(buffer: Buffer) -> None:
    before = explore(buffer, REWARDS)
    again(buffer)
    assert stored_groups(buffer, "run") == before


@pytest.mark.slow
def test_repeating_it_adds_nothing(buffer: Buffer) -> None:
    explore(buffer, REWARDS)
    first = again(buffer)
    counts = buffer.counts()
    second = again(buffer)
    assert buffer.counts() == counts
    assert (second.admitted, second.already, second.still_rejected) == (0, first.admitted, 1)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["annotations", "versions", "groups"])
def test_what_a_kill_left_undone_the_next_call_does(
    buffer: Buffer, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    class Killed(BaseException):
        pass

    explore(buffer, REWARDS)
    add = Buffer.add_rows

    def dying(self: Buffer, name: str, rows: object) -> None:
        if name == table:
            raise Killed
        add(self, name, rows)

    if table == "annotations":
        monkeypatch.setattr(Buffer, "annotate", lambda *_: (_ for _ in ()).throw(Killed()))
    else:
        monkeypatch.setattr(Buffer, "add_rows", dying)
    with pytest.raises(Killed):
        again(buffer)
    monkeypatch.undo()
    assert again(buffer).admitted == 2
    assert again(buffer).already == 2
    assert len(stored_groups(buffer, "book")) == 2


@pytest.mark.slow
def test_a_delayed_reward_makes_its_group_trainable(buffer: Buffer) -> None:
    explore(buffer, REWARDS, WITH_FEEDBACK)
    assert again(buffer, WITH_FEEDBACK).admitted == 0
    ids = buffer.take([6, 7]).column("experience_id").to_pylist()
    buffer.add_feedback([Feedback(name, "judge", "reward", float(n)) for n, name in enumerate(ids)])
    found = again(buffer, WITH_FEEDBACK)
    assert (found.admitted, found.rows, found.still_rejected) == (1, 2, 2)
    [group] = stored_groups(buffer, "book")
    assert group.seqs == (6, 7)


@pytest.mark.slow
def test_later_feedback_adds_groups_in_order(buffer: Buffer) -> None:
    explore(buffer, REWARDS, WITH_FEEDBACK)
    for first, value in ((6, 1.0), (2, 0.0)):
        name = buffer.take([first]).column("experience_id")[0].as_py()
        buffer.add_feedback([Feedback(name, "judge", "reward", value)])
        partner = buffer.take([first + 1]).column("experience_id")[0].as_py()
        buffer.add_feedback([Feedback(partner, "judge", "reward", 0.5)])
        operators = [{"feedback_mapper": {"replace": True}}, *STRICT]
        again(buffer, operators)
    groups = stored_groups(buffer, "book")
    assert [(group.ticket.ordinal, group.seqs) for group in groups] == [(0, (6, 7)), (1, (2, 3))]


@pytest.mark.slow
def test_a_group_is_readmitted_under_one_run_id_only(buffer: Buffer) -> None:
    explore(buffer, REWARDS)
    again(buffer)
    other = again(buffer, [], book="another")
    assert (other.elsewhere, other.admitted) == (2, 1), "only the group without rewards is free"
    assert again(buffer, book="third").elsewhere == 3


@pytest.mark.slow
def test_a_retired_group_stays_out(buffer: Buffer) -> None:
    explore(buffer, REWARDS)
    Ledger(buffer, "run", 0).retire("", ["run/0-00000001"], "rows lost")
    found = again(buffer)
    assert (found.set_aside, found.admitted) == (1, 1)


@pytest.mark.slow
def test_a_run_id_in_training_takes_no_more_groups(buffer: Buffer) -> None:
    explore(buffer, REWARDS, WITH_FEEDBACK)
    lenient = [{"feedback_mapper": {}}, *LENIENT]
    again(buffer, lenient)
    Ledger(buffer, "book", 0).attach(CONSUMER)
    assert again(buffer, lenient).admitted == 0
    name = buffer.take([6]).column("experience_id")[0].as_py()
    buffer.add_feedback([Feedback(name, "judge", "reward", 1.0)])
    with pytest.raises(RecipeError, match="are being trained on, or were; 1 more groups"):
        again(buffer, lenient)
    assert again(buffer, lenient, book="second").admitted == 1


@pytest.mark.slow
def test_a_run_id_with_groups_of_other_operators_is_refused(buffer: Buffer) -> None:
    explore(buffer, REWARDS)
    again(buffer)
    with pytest.raises(RecipeError, match="has groups that other operators kept"):
        again(buffer, ADVANTAGES)


@pytest.mark.slow
def test_a_verdict_that_dropped_a_group_is_no_sign_of_the_same_operators(buffer: Buffer) -> None:
    explore(buffer, REWARDS, WITH_FEEDBACK)
    again(buffer, [{"feedback_mapper": {}}, *LENIENT])
    ids = buffer.take([6, 7]).column("experience_id").to_pylist()
    buffer.add_feedback([Feedback(name, "judge", "reward", float(n)) for n, name in enumerate(ids)])
    with pytest.raises(RecipeError, match="has groups that other operators kept"):
        again(buffer, WITH_FEEDBACK)
    assert len(stored_groups(buffer, "book")) == 2
    assert again(buffer, WITH_FEEDBACK, book="another").admitted == 1


@pytest.mark.slow
def test_groups_that_lost_rows_are_set_aside_unjudged(tmp_path: Path) -> None:
    place = tmp_path / "buffer"
    with Buffer(place) as buffer:
        explore(buffer, [[1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    lance.dataset(str(place / "experiences.lance")).delete("seq in (4, 6, 7)")
    repair(place)
    with Buffer(place) as buffer:
        found = again(buffer)
        assert (found.rejected, found.set_aside, found.admitted, found.still_rejected) == (3, 2, 1, 0)
        assert found.rejected_by == {}
        assert [group.seqs for group in stored_groups(buffer, "book")] == [(8, 9)]
        hash_ = pipeline(LENIENT).pipeline_hash
        judged = buffer.read("annotations", ["seq"], Compare("pipeline_hash", "eq", hash_))
        assert judged.column("seq").to_pylist() == [8, 9]


@pytest.mark.slow
@pytest.mark.parametrize("book", ["run", "other"])
def test_the_id_of_a_run_that_explored_is_refused(buffer: Buffer, book: str) -> None:
    explore(buffer, REWARDS)
    explore(buffer, REWARDS, run_id="other")
    with pytest.raises(RecipeError, match="is the id of a run that explored"):
        again(buffer, book=book)


def test_an_unknown_run_is_refused(buffer: Buffer) -> None:
    with pytest.raises(RecipeError, match="has no group of a run 'run'"):
        again(buffer)


@pytest.mark.slow
def test_the_buffer_stays_sound(buffer: Buffer, tmp_path: Path) -> None:
    explore(buffer, REWARDS)
    again(buffer)
    report = verify(tmp_path / "buffer")
    assert [finding for finding in report.findings if finding.severity != "note"] == []


def test_a_run_under_way_is_refused(buffer: Buffer, tmp_path: Path) -> None:
    import fcntl
    import os
    import socket
    import time

    from rft_data.core.words import RunState
    from rft_data.run.record import RunRecord, write_record

    folder = tmp_path / "run"
    folder.mkdir()
    row = {"run_id": "run", "recipe_hash": "h", "code_version": "1", "attempt": 0}
    buffer.add_rows("runs", [{**row, "recipe": {"run_dir": str(folder)}}])
    check_not_running(buffer, "run")
    write_record(
        folder,
        RunRecord(os.getpid(), socket.gethostname(), 0, time.time(), RunState.RUNNING, time.time()),
        durable=False,
    )
    with (folder / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="can be readmitted when it has ended"):
            check_not_running(buffer, "run")
    check_not_running(buffer, "run")
    check_not_running(buffer, "no such run")
