"""The buffer and its ledger against a model of plain dicts, over arbitrary sequences of operations."""

import shutil
import tempfile
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.codec import to_experiences, to_table
from rft_data.core.errors import ConflictError, FencedError, IntegrityError, RftError
from rft_data.core.groups import GroupResult, Lease, Ticket
from rft_data.core.rows import Experience, TaskKey, now
from rft_data.core.schema import ANNOTATIONS, INCOMING
from rft_data.sampler.ledger import Ledger
from tests.rft_data.conftest import make_experience

CONSUMERS = ("actor", "critic")
PIPELINES = ("p", "q")
STEPS = st.integers(0, 4)
BAD = (
    {"reward": float("nan")},
    {"logprobs": [0.0]},
    {"source": "nowhere"},
    {"completion_text": "\ud800"},
    {"group_id": ""},
)


def row(number: int, **changes: object) -> Experience:
    fields: dict[str, object] = {"reward": number / 4, "completion_text": f"text {number}"}
    return make_experience(number, **{**fields, **changes})


def annotation(seq: int, pipeline: str, advantage: list[float] | None) -> dict:
    return {
        "seq": seq,
        "experience_id": f"row {seq}",
        "pipeline_hash": pipeline,
        "verdict": "dropped" if advantage is None else "kept",
        "dropped_by": "op" if advantage is None else "",
        "reason": "",
        "advantage": advantage,
        "shaped_reward": None,
        "masked": None,
        "stats": {},
        "created_at": now(),
    }


class BufferMachine(RuleBasedStateMachine):
    """Experiences are named by a number; `stored[seq]` is the number of the row that must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.buffer = Buffer(self.folder / "buffer")
        self.reader = Buffer(self.folder / "buffer", read_only=True)
        self.stored: list[int] = []
        self.next_number = 0
        self.refused: set[str] = set()
        self.waiting: list[tuple[list[int], Future]] = []
        self.verdicts: dict[tuple[str, int], list[float] | None] = {}
        self.groups: list[GroupResult] = []
        self.leases: dict[tuple[str, int], tuple[str, ...]] = {}
        self.given: list[Lease] = []
        self.uses: Counter[tuple[str, str]] = Counter()
        self.retired: dict[str, dict[str, str]] = {consumer: {} for consumer in CONSUMERS}
        self.consumed: set[tuple[str, int]] = set()
        self.epochs: Counter[str] = Counter()

    @initialize(max_uses=st.integers(1, 2))
    def start(self, max_uses: int) -> None:
        self.max_uses = max_uses
        self.ledger = Ledger(self.buffer, "run", 0, max_uses=max_uses)

    def teardown(self) -> None:
        self.buffer.close()
        shutil.rmtree(self.folder)

    def fresh(self, count: int) -> list[int]:
        self.next_number += count
        return list(range(self.next_number - count, self.next_number))

    def expect(self, numbers: list[int]) -> tuple[int, ...]:
        """Row numbers that appending these rows must give; new rows enter the model."""
        for number in numbers:
            if number not in self.stored:
                self.stored.append(number)
        return tuple(self.stored.index(number) for number in numbers)

    # --- writing -----------------------------------------------------------------------------------

    @rule(data=st.data(), count=st.integers(0, 5), as_table=st.booleans())
    def append(self, data: st.DataObject, count: int, as_table: bool) -> None:
        self.flush()
        old = data.draw(st.lists(st.sampled_from(self.stored), max_size=3)) if self.stored else []
        numbers = data.draw(st.permutations(self.fresh(count) + old))
        rows = [row(number) for number in numbers]
        before = len(self.stored)
        done = self.buffer.append(to_table(rows, INCOMING) if as_table else rows)
        assert done.seqs == self.expect(numbers)
        assert (done.stored, done.quarantined) == (len(self.stored) - before, 0)
        assert [r.completion_text for r in to_experiences(done.rows)] == [r.completion_text for r in rows]

    @rule(data=st.data(), count=st.integers(1, 4))
    def submit(self, data: st.DataObject, count: int) -> None:
        known = self.stored + [number for numbers, _ in self.waiting for number in numbers]
        old = data.draw(st.lists(st.sampled_from(known), max_size=2)) if known else []
        numbers = self.fresh(count) + old
        self.waiting.append((numbers, self.buffer.submit([row(number) for number in numbers])))

    @rule()
    def flush(self) -> None:
        for numbers, future in self.waiting:
            assert future.result(30).seqs == self.expect(numbers)
        self.waiting = []

    @rule(data=st.data())
    @precondition(lambda self: self.stored)
    def conflict(self, data: st.DataObject) -> None:
        self.flush()
        changed = row(data.draw(st.sampled_from(self.stored)), tokenizer_hash="another")
        with pytest.raises(ConflictError, match="already stored with other content"):
            self.buffer.append([row(self.next_number), changed])

    @rule(data=st.data(), count=st.integers(0, 2))
    def append_with_bad_rows(self, data: st.DataObject, count: int) -> None:
        self.flush()
        good = self.fresh(count)
        bad = data.draw(st.lists(st.sampled_from(BAD), min_size=1, max_size=2))
        brought: list[int | dict] = data.draw(st.permutations([*good, *bad]))
        rows = [row(10_000, **item) if isinstance(item, dict) else row(item) for item in brought]
        done = self.buffer.append(rows)
        seqs = iter(self.expect([item for item in brought if not isinstance(item, dict)]))
        assert done.seqs == tuple(None if isinstance(item, dict) else next(seqs) for item in brought)
        assert done.quarantined == len(bad)
        self.refused |= {repr(item) for item in bad}  # the same row with the same fault is kept once

    @rule(data=st.data(), pipeline=st.sampled_from(PIPELINES))
    @precondition(lambda self: self.stored)
    def annotate(self, data: st.DataObject, pipeline: str) -> None:
        seqs = data.draw(st.lists(st.integers(0, len(self.stored) - 1), min_size=1, max_size=4, unique=True))
        values = st.one_of(
            st.none(), st.lists(st.sampled_from([-0.5, 0.0, 1.5]), min_size=1, max_size=1), st.just([0.5] * 4)
        )
        chosen = {seq: data.draw(values) for seq in seqs}
        rows = [annotation(seq, pipeline, value) for seq, value in chosen.items()]
        self.buffer.annotate(to_table(rows, ANNOTATIONS))
        self.verdicts.update({(pipeline, seq): value for seq, value in chosen.items()})

    # --- reading -----------------------------------------------------------------------------------

    @rule(data=st.data(), missing=st.booleans())
    def take(self, data: st.DataObject, missing: bool) -> None:
        self.flush()
        seqs = data.draw(st.lists(st.integers(0, len(self.stored) - 1), max_size=8)) if self.stored else []
        if missing:
            absent = data.draw(st.sampled_from([-1, len(self.stored), 2**40]))
            with pytest.raises(IntegrityError, match=f"no experience with row number {absent}"):
                self.buffer.take([*seqs, absent, *seqs])
            return
        for opened in (self.buffer, self.reader):
            rows = opened.take(seqs)
            assert rows.column("seq").to_pylist() == seqs
            texts = [f"text {self.stored[seq]}" for seq in seqs]
            assert rows.column("completion_text").to_pylist() == texts

    @rule(data=st.data(), pipeline=st.sampled_from(PIPELINES))
    @precondition(lambda self: self.stored)
    def leased(self, data: st.DataObject, pipeline: str) -> None:
        self.flush()
        kept = [seq for seq in range(len(self.stored)) if self.verdicts.get((pipeline, seq)) is not None]
        anyone = st.integers(0, len(self.stored) - 1)
        element = st.one_of(anyone, st.sampled_from(kept)) if kept else anyone
        seqs = data.draw(st.lists(element, min_size=1, max_size=5, unique=True))
        lease = Lease("actor", 0, 0, 0, tuple(seqs), (), content_id(seqs))
        if not set(seqs) <= set(kept):
            with pytest.raises(IntegrityError, match="has no advantage from the pipeline"):
                self.buffer.leased(lease, pipeline)
            return
        table = self.buffer.leased(lease, pipeline).table
        assert table.column("seq").to_pylist() == seqs
        assert table.column("advantage").to_pylist() == [self.verdicts[pipeline, seq] for seq in seqs]

    # --- the ledger --------------------------------------------------------------------------------

    @rule(size=st.integers(0, 3))
    @precondition(lambda self: self.stored)
    def close_group(self, size: int) -> None:
        self.flush()
        ordinal = len(self.groups)
        seqs = tuple(range(max(0, len(self.stored) - size), len(self.stored)))
        ticket = Ticket(f"run/0-{ordinal:08d}", ordinal, 0)
        self.groups.append(GroupResult(ticket, TaskKey("a", "t"), (0.0,), "arrived", 0, seqs))

    @rule(data=st.data(), consumer=st.sampled_from(CONSUMERS), step=STEPS)
    @precondition(lambda self: self.groups)
    def grant(self, data: st.DataObject, consumer: str, step: int) -> None:
        groups = data.draw(st.lists(st.sampled_from(self.groups), min_size=1, max_size=3))
        names = [group.ticket.group_id for group in groups]
        uses = {name: self.uses[consumer, name] + n for name, n in Counter(names).items()}
        refused = (consumer, step) in self.leases or max(uses.values()) > self.max_uses
        retired = not self.retired[consumer].keys().isdisjoint(names)
        if refused or retired or not all(group.seqs for group in groups):
            with pytest.raises(ConflictError):
                self.ledger.grant(consumer, step, 7, groups)
            return
        lease = self.ledger.grant(consumer, step, 7, groups)
        assert lease.seqs == tuple(seq for group in groups for seq in group.seqs)
        assert lease.digest == content_id(list(lease.seqs))
        self.leases[consumer, step] = tuple(names)
        self.uses.update((consumer, name) for name in names)
        self.given.append(lease)

    @rule(data=st.data())
    @precondition(lambda self: self.leases)
    def release(self, data: st.DataObject) -> None:
        consumer, step = data.draw(st.sampled_from(sorted(self.leases)))
        lease = self.ledger.find(consumer, step)
        assert lease is not None
        if (consumer, step) in self.consumed:
            with pytest.raises(ConflictError, match="is part of a checkpoint"):
                self.ledger.release(lease, "back")
            return
        for _ in range(2):
            self.ledger.release(lease, "back")
        self.uses.subtract((consumer, name) for name in self.leases.pop((consumer, step)))

    @rule(data=st.data())
    @precondition(lambda self: self.given)
    def release_again_what_was_given_back(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.given))
        if (lease.consumer, lease.step) not in self.leases:
            self.ledger.release(lease, "sent twice")

    @rule(data=st.data(), consumer=st.sampled_from(CONSUMERS))
    @precondition(lambda self: self.groups)
    def retire(self, data: st.DataObject, consumer: str) -> None:
        groups = data.draw(st.lists(st.sampled_from(self.groups), max_size=3))
        names = [group.ticket.group_id for group in groups]
        self.ledger.retire(consumer, names, "stale")
        self.retired[consumer].update(dict.fromkeys(names, "stale"))

    @rule(consumer=st.sampled_from(CONSUMERS), step=STEPS)
    def consume(self, consumer: str, step: int) -> None:
        self.ledger.consume(consumer, step)
        self.consumed |= {(who, s) for who, s in self.leases if who == consumer and s < step}

    @rule(consumer=st.sampled_from(CONSUMERS))
    def attach(self, consumer: str) -> None:
        self.epochs[consumer] += 1
        assert self.ledger.attach(consumer) == self.epochs[consumer]
        for stale in (self.epochs[consumer] - 1, self.epochs[consumer] + 1):
            with pytest.raises(FencedError, match=f"holds epoch {stale}"):
                self.ledger.find(consumer, 0, epoch=stale)

    # --- upkeep ------------------------------------------------------------------------------------

    @rule()
    def compact(self) -> None:
        self.buffer.compact()

    @rule()
    def reopen(self) -> None:
        self.buffer.close()
        self.flush()  # closing stores what was submitted
        self.buffer = Buffer(self.folder / "buffer")
        self.ledger = Ledger(self.buffer, "run", 1, max_uses=self.max_uses)

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        if self.waiting:
            return
        for opened in (self.buffer, self.reader):
            table = opened.read("experiences", ["seq", "experience_id"])
            assert table.column("seq").to_pylist() == list(range(len(self.stored)))
            ids = [row(number).experience_id for number in self.stored]
            assert table.column("experience_id").to_pylist() == ids
            assert opened.counts()["quarantine"] == len(self.refused)
            assert len(opened) == len(self.stored)

    @invariant()
    def ledger_is_that_of_the_model(self) -> None:
        if not hasattr(self, "max_uses"):
            return
        seqs = {group.ticket.group_id: group.seqs for group in self.groups}
        for consumer in CONSUMERS:
            leases = {lease.step: lease for lease in self.ledger.leases(consumer)}
            assert {(consumer, step) for step in leases} == {key for key in self.leases if key[0] == consumer}
            for step, lease in leases.items():
                assert lease.group_ids == self.leases[consumer, step]
                assert lease.seqs == tuple(seq for name in lease.group_ids for seq in seqs[name])
                assert self.ledger.is_consumed(lease) == ((consumer, step) in self.consumed)
                found = self.ledger.find(consumer, step, epoch=self.epochs[consumer])
                assert found is not None
                assert found.epoch == self.epochs[consumer]
            assert self.ledger.retired(consumer) == self.retired[consumer]
            assert self.ledger.consumed(consumer) == sum(who == consumer for who, _ in self.consumed)


TestBufferModel = pytest.mark.slow(BufferMachine.TestCase)
TestBufferModel.settings = settings(
    max_examples=16,
    stateful_step_count=25,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # every step is a commit: shrinking takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.slow
def test_a_late_release_does_not_take_a_newer_lease_away(buffer: Buffer) -> None:
    ledger = Ledger(buffer, "run", 0)
    groups = [
        GroupResult(Ticket(f"run/0-{i:08d}", i, 0), TaskKey("a", "t"), (0.0,), "arrived", 0, (i,))
        for i in range(2)
    ]
    old = ledger.grant("trainer", 0, 0, groups[:1])
    ledger.release(old, "given back")
    new = ledger.grant("trainer", 0, 0, groups[1:])
    ledger.release(old, "sent twice")
    assert ledger.find("trainer", 0) == new


@pytest.mark.slow
def test_a_read_only_buffer_refuses_to_write(buffer: Buffer) -> None:
    buffer.append([row(0)])
    with Buffer(buffer.root, read_only=True) as reader:
        for write in (
            lambda: reader.append([row(1)]),
            lambda: reader.annotate(to_table([annotation(0, "p", [1.0])], ANNOTATIONS)),
            lambda: reader.add_payload(b"image", "image/png"),
            lambda: reader.compact(),
        ):
            with pytest.raises(RftError):
                write()
    assert buffer.read("experiences", ["seq"]).column("seq").to_pylist() == [0]
    assert set(buffer.counts().values()) == {0, 1}
