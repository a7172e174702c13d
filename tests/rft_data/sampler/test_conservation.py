"""The accounting of a run's rollouts: every state a row can be in, and every contradiction it must name.

The tables are written by hand, so that each figure is known without the code that writes them in a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import IntegrityError
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import TaskKey, now
from rft_data.core.schema import ANNOTATIONS
from rft_data.core.words import GroupState
from rft_data.sampler import conservation as module
from rft_data.sampler.conservation import Conservation, check_conservation, conservation
from rft_data.sampler.ledger import Ledger
from tests.rft_data.conftest import make_experience

WHO = "trainer"
KEPT, DROPPED, QUARANTINED = ("kept", ""), ("dropped", "variance"), ("quarantined", "")


class Tables:
    """Writes groups as a run would: rows, verdicts, the group."""

    def __init__(self, folder: Path, max_uses: int = 1) -> None:
        self.buffer = Buffer(folder)
        self.ledger = Ledger(self.buffer, "run", 0, max_uses=max_uses)

    def rows(self, name: str, rewards: Sequence[float | None], run: str = "run", **changes: Any) -> list[int]:
        experiences = [
            make_experience(
                experience_id=f"{name}-{member}",
                run_id=run,
                group_id=name,
                member=member,
                reward=reward,
                **changes,
            )
            for member, reward in enumerate(rewards)
        ]
        return list(self.buffer.append(experiences).seqs)

    def judge(self, seqs: Sequence[int], verdicts: Sequence[tuple[str, str]], pipeline: str = "own") -> None:
        rows = [
            {
                "seq": seq,
                "experience_id": "e",
                "pipeline_hash": pipeline,
                "verdict": verdict,
                "dropped_by": dropped_by,
                "reason": "",
                "advantage": [0.0] if verdict == "kept" else None,
                "shaped_reward": None,
                "masked": None,
                "stats": "{}",
                "created_at": now(),
            }
            for seq, (verdict, dropped_by) in zip(seqs, verdicts, strict=True)
        ]
        self.buffer.annotate(pa.Table.from_pylist(rows, schema=ANNOTATIONS))

    def close(
        self, name: str, seqs: Sequence[int], rewards: Sequence[float | None] = (), **changes: Any
    ) -> None:
        group = {
            "group_id": name, "run_id": "run", "ordinal": 0, "round": 0, "attempt": 0, "taskset": "arith",
            "task_id": "t0", "version": 0, "version_min": 0, "outcome": "arrived", "rewards": list(rewards),
            "seqs": list(seqs), "dropped_by": "", "error": "",
        }  # fmt: skip
        self.buffer.add_rows("groups", [{**group, **changes}])

    def kept(self, name: str, rewards: Sequence[float | None], **changes: Any) -> list[int]:
        """A group of which every row is kept."""
        seqs = self.rows(name, rewards, **changes)
        self.judge(seqs, [KEPT] * len(seqs))
        self.close(name, seqs, rewards, run_id=changes.get("run", "run"))
        return seqs

    def lease(self, step: int, *groups: tuple[str, Sequence[int]], ledger: Ledger | None = None) -> None:
        results = [
            GroupResult(Ticket(name, 0, 0), TaskKey("arith", "t0"), (), "arrived", 0, tuple(seqs), "")
            for name, seqs in groups
        ]
        (ledger or self.ledger).grant(WHO, step, 0, results)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    made = Tables(tmp_path / "buffer")
    yield made
    made.buffer.close()


def counted(counts: Conservation) -> dict[str, object]:
    """Figures that are not zero."""
    return {name: value for name, value in counts.as_dict().items() if value}


@pytest.mark.slow
def test_every_row_is_counted_in_its_state(tables: Tables) -> None:
    trained, leased = tables.kept("trained", [1.0, 0.0]), tables.kept("leased", [1.0])
    tables.lease(0, ("trained", trained))
    tables.lease(1, ("leased", leased))
    tables.ledger.consume(WHO, 1)
    tables.kept("pending", [1.0] * 3)
    dropped = tables.rows("dropped", [0.0] * 4)
    tables.judge(dropped, [DROPPED] * 4)
    tables.close("dropped", [], [0.0] * 4, dropped_by="variance")
    torn = tables.rows("torn", [1.0] * 6)
    tables.judge(torn, [QUARANTINED] * 5 + [KEPT])
    tables.close("torn", torn[5:], [1.0] * 6)
    tables.close("unscored", [], dropped_by="invalid")
    tables.rows("unscored", [None] * 6, unscored_reason="too late")
    tables.kept("stale", [1.0] * 7)
    tables.ledger.retire(WHO, ["stale"], GroupState.STALE)
    tables.kept("set aside", [1.0] * 8)
    tables.ledger.retire(WHO, ["set aside"], "resume")
    tables.rows("failed", [1.0])
    tables.close("failed", [], outcome="failed")
    tables.rows("open", [1.0] * 10)
    tables.rows("waits", [None, *[1.0] * 10])
    assert counted(conservation(tables.buffer, tables.ledger, WHO)) == {
        "produced": 59,
        "trained": 2,
        "leased": 1,
        "pending": 3 + 1,
        "filtered": {"variance": 4},
        "quarantined": 5,
        "unscored": 6,
        "stale": 7,
        "cancelled": 8 + 1,
        "unjudged": 10,
        "awaiting": 11,
    }


def test_states_leave_nothing_over_and_nothing_twice() -> None:
    """The residual subtracts every state from what was produced, each once."""
    counts = Conservation(1000, 1, 2, 4, quarantined=8, unscored=16, stale=32, cancelled=64, unjudged=128)
    counts.filtered.update({"a": 1, "b": 2})
    counts.awaiting, counts.lost, counts.reused = 256, 5, 7
    assert counts.residual == 1000 - 511 - 3


@pytest.mark.slow
def test_a_row_without_a_reward_is_unscored_unless_feedback_gave_the_reward(tables: Tables) -> None:
    """The late reward stands in the group, in order of seq; the operators' verdict then says what it was."""
    for name, rewards in (("late", [0.5, None]), ("shorter", [0.5])):
        seqs = tables.rows(name, [None, None], unscored_reason="late")
        tables.judge(seqs, [DROPPED, DROPPED])
        tables.close(name, [], rewards, dropped_by="variance")
    counts = conservation(tables.buffer, tables.ledger, WHO)
    assert (counts.filtered, counts.unscored, counts.residual) == ({"variance": 1}, 3, 0)


@pytest.mark.slow
def test_the_newest_verdict_of_the_operators_that_judged_first_counts(tables: Tables) -> None:
    seqs = tables.rows("g", [1.0, 1.0])
    tables.judge(seqs, [KEPT, DROPPED])
    tables.judge(seqs, [QUARANTINED, DROPPED])
    tables.judge(seqs, [KEPT, KEPT], pipeline="a later look")
    tables.close("g", [], [1.0, 1.0], dropped_by="whole")
    counts = conservation(tables.buffer, tables.ledger, WHO)
    assert (counts.quarantined, counts.filtered, counts.faults) == (1, {"variance": 1}, [])


@pytest.mark.slow
def test_rows_kept_in_a_group_dropped_as_a_whole_count_for_its_operator(tables: Tables) -> None:
    seqs = tables.rows("g", [1.0, 1.0])
    tables.judge(seqs, [KEPT, KEPT])
    tables.close("g", [], [1.0, 1.0], dropped_by="whole")
    assert conservation(tables.buffer, tables.ledger, WHO).filtered == {"whole": 2}


@pytest.mark.slow
def test_rows_of_experts_count_with_their_group_and_other_runs_when_named(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROWS_PER_FILTER", 2)
    tables.kept("mine", [1.0])
    tables.close("experts", tables.rows("experts", [1.0] * 5, source="expert", run="import"))
    tables.kept("theirs", [1.0] * 7, run="other")
    tables.rows("theirs, open", [1.0] * 11, run="other")
    tables.rows("mine, waiting", [None] * 13)
    mine = conservation(tables.buffer, tables.ledger, WHO)
    assert counted(mine) == {"produced": 19, "awaiting": 13, "pending": 6}
    both = conservation(tables.buffer, tables.ledger, WHO, ["other"])
    assert counted(both) == {"produced": 37, "awaiting": 13, "unjudged": 11, "pending": 13}


@pytest.mark.slow
def test_a_row_of_several_trained_leases_is_trained_once_and_reused(tmp_path: Path) -> None:
    tables = Tables(tmp_path / "buffer", max_uses=3)
    seqs, once = tables.kept("thrice", [1.0, 0.0]), tables.kept("once", [1.0])
    for step in range(3):
        tables.lease(step, ("thrice", seqs))
    tables.lease(3, ("once", once))
    tables.ledger.consume(WHO, 2)
    counts = conservation(tables.buffer, tables.ledger, WHO)
    assert (counts.trained, counts.leased, counts.reused, counts.residual, counts.faults) == (2, 1, 2, 0, [])
    stricter = Ledger(tables.buffer, "run", 1, max_uses=2)
    over = conservation(tables.buffer, stricter, WHO).faults
    assert over == ["1 groups are leased more than 2 times, first 'thrice'"]
    tables.buffer.close()


def test_leased_rows_that_a_repair_removed_are_lost_and_no_fault(tmp_path: Path) -> None:
    tables = Tables(tmp_path / "buffer")
    tables.lease(0, ("gone", [5, 6]))
    tables.buffer.close()
    (tmp_path / "buffer" / "lost_rows.json").write_text(json.dumps({"seqs": [[5, 6], [9, 9]]}))
    with Buffer(tmp_path / "buffer") as opened:
        counts = conservation(opened, Ledger(opened, "run", 1), WHO)
    assert counted(counts) == {"lost": 2}


@pytest.mark.slow
def test_contradictions_between_the_tables_are_named(tables: Tables) -> None:
    seqs = tables.kept("whole", [1.0, 0.0])
    tables.lease(0, ("whole", seqs[:1]))
    tables.lease(1, ("nowhere", [70, 71]))
    outside = tables.rows("g", [1.0])
    tables.judge(outside, [KEPT])
    tables.close("g", [], [1.0])
    assert conservation(tables.buffer, tables.ledger, WHO).faults == [
        f"row {outside[0]} is kept but not among the rows of its group",
        "leases name 2 rows that are not rollouts of the run, first 70",
        f"lease {WHO}/0 does not hold whole groups",
        f"lease {WHO}/1 does not hold whole groups",
    ]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tables, dict[str, int], int]]:
    """Tables with a group in every state, and what a sampler would say of them after 2 steps."""
    tables = Tables(tmp_path_factory.mktemp("sound") / "buffer")
    for step in range(2):
        names = [f"leased {step} {n}" for n in range(2)]
        tables.lease(step, *[(name, tables.kept(name, [1.0])) for name in names])
    tables.ledger.consume(WHO, 2)
    for n in range(3):
        tables.kept(f"ready {n}", [1.0])
    for name, state in (("stale", GroupState.STALE), ("aside", "resume"), ("aside 2", "resume")):
        tables.kept(name, [1.0])
        tables.ledger.retire(WHO, [name], state)
    for n in range(5):
        tables.close(f"dropped {n}", [], dropped_by="variance")
    for n in range(6):
        tables.close(f"failed {n}", [], outcome="failed")
    tables.close("cancelled", [], outcome="cancelled")
    tables.close("dropped and aside", [], dropped_by="variance")
    tables.ledger.retire(WHO, ["dropped and aside"], "resume")
    book = {"trained": 3, "leased": 1, "ready": 3, "stale": 1, "dropped": 6, "failed": 6, "cancelled": 3}
    yield tables, {**book, "open": 0, "admitted": 23}, 2
    tables.buffer.close()


@pytest.mark.slow
def test_a_book_that_agrees_with_the_tables_passes(sound: tuple[Tables, dict[str, int], int]) -> None:
    tables, book, steps = sound
    assert counted(check_conservation(tables.buffer, tables.ledger, WHO, book, steps)) == {
        "produced": 10, "trained": 4, "pending": 3, "stale": 1, "cancelled": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"admitted": 24}, "admitted: 24 and 23;"),
        ({"ready": 4, "admitted": 24}, "arrived: 15 and 14;"),
        ({"stale": 0, "admitted": 22}, "arrived: 13 and 14;"),
        ({"dropped": 5, "ready": 4}, "dropped: 5 and 6;"),
        ({"failed": 7, "admitted": 24}, "failed: 7 and 6;"),
        ({"leased": 0, "ready": 4}, "trained and leased: 3 and 4;"),
    ],
)
def test_a_book_that_differs_is_refused_with_the_figure(
    sound: tuple[Tables, dict[str, int], int], changed: dict[str, int], said: str
) -> None:
    tables, book, steps = sound
    with pytest.raises(IntegrityError, match="not conserved") as refused:
        check_conservation(tables.buffer, tables.ledger, WHO, {**book, **changed}, steps)
    differences = str(refused.value).partition("differ in ")[2].partition(". This")[0]
    assert differences + ";" == said


def test_steps_that_differ_are_refused(sound: tuple[Tables, dict[str, int], int]) -> None:
    tables, book, steps = sound
    with pytest.raises(
        IntegrityError, match=r"differ in steps leased: 3 and 2; steps consumed: 3 and 2\. This"
    ):
        check_conservation(tables.buffer, tables.ledger, WHO, book, steps + 1)


@pytest.mark.slow
def test_faults_and_rows_unaccounted_for_are_refused(tables: Tables) -> None:
    tables.judge(tables.rows("g", [1.0, 1.0]), [KEPT, KEPT])
    tables.close("g", [], [1.0, 1.0])
    book = dict.fromkeys([*GroupState, "admitted"], 0) | {"dropped": 1, "admitted": 1}
    with pytest.raises(
        IntegrityError, match=r"rows unaccounted for: 0 and 2; row 0 is kept .*; row 1 is kept"
    ):
        check_conservation(tables.buffer, tables.ledger, WHO, book, 0)
