"""One start of a run, rebuilt from the folder as a restarted process would: owner, writers and consumer.

Writers resend what was not acknowledged, then explorers, an importer and a keeper work beside the consumer
until the process is killed, or, when told to, until a checkpoint is due.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.crash.orders import Orders
from benchmarks.crash.outside import Facts, Notes, read_facts
from benchmarks.crash.pipeline import CentredReward
from benchmarks.crash.rows import CONSUMER, GROUP_SIZE, RUN, TASKS, group_rows, is_failed
from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError
from rft_data.core.groups import Lease, Played
from rft_data.core.rows import Experience
from rft_data.loop.closing import GroupCloser, stored_groups
from rft_data.placement.hub import HubClient, HubServer
from rft_data.sampler import History, make_sampler
from rft_data.sampler.conservation import check_conservation
from rft_data.sampler.ledger import Ledger
from rft_data.weights import checkpoint
from rft_data.weights.versions import VersionRegistry

GROUPS_PER_STEP = 2
CHECKPOINT_EVERY = 3
PUBLISH_EVERY = 2
_EXPLORERS = 3
_PAUSE_S = 0.002
FAULT_EXIT = 3
"""Exit status of a child that found something wrong itself."""


class RunStart:
    """Everything of one start."""

    def __init__(self, orders: Orders) -> None:
        """Open the buffer, resend, recover, attach: each of these may be where the kill comes."""
        self.orders = orders
        self.notes = Notes(orders.root)
        facts = read_facts(orders.root)
        self.stop = threading.Event()
        self.book = threading.Lock()
        # a hub's client stands in for the buffer, and its ledger for the ledger
        opened: Any = open_buffer(orders) if orders.hub is None else HubClient(*orders.hub)
        self.buffer: Buffer = opened
        self.buffer.add_tasks(TASKS)
        self._resend(facts)
        tasks = {task.key: task for task in TASKS}
        self.closer = GroupCloser(self.buffer, CentredReward(), RUN, orders.attempt, GROUP_SIZE)
        self.closer.recover(tasks)
        ledger: Any = Ledger if orders.hub is None else HubClient.ledger
        self.ledger: Ledger = ledger(self.buffer, RUN, orders.attempt)
        self.notes.note("epoch", epoch=self.ledger.attach(CONSUMER))
        self.checkpoints = orders.root / "checkpoints"
        resumed = checkpoint.newest(self.checkpoints)
        self.trained: list[dict[str, Any]] = [] if resumed is None else list(resumed.state["trained"])
        if resumed is not None:
            self.ledger.consume(CONSUMER, resumed.step)
        self.released = {note["step"] for note in facts.trained}  # these may not be given back any more
        self.versions = VersionRegistry(self.buffer, RUN, orders.root / "weights")
        self.publish(self.step)
        self.sampler = make_sampler(
            "fifo",
            {},
            ledger=self.ledger,
            versions=self.versions,
            consumer=CONSUMER,
            groups_per_step=GROUPS_PER_STEP,
            max_staleness=2,
            history=History(stored_groups(self.buffer, RUN), settled_steps=self.step),
        )
        self.imported = [group_id for group_id in facts.groups if group_id.startswith("expert/")]
        self.acked = dict(facts.acked)

    @property
    def step(self) -> int:
        """Gradient steps behind the present weights."""
        return len(self.trained)

    def run(self) -> None:
        """Work until killed, or until done."""
        roles: list[Callable[[], None]] = [*[self.explore] * _EXPLORERS, self.import_rows]
        if self.orders.hub is None:
            roles.append(lambda: keep(self.buffer, self.orders.seed, self.stop))
        threads = [threading.Thread(target=guarded, args=(self.notes, role), daemon=True) for role in roles]
        for thread in threads:
            thread.start()
        self.consume()
        self.stop.set()
        for thread in threads:
            thread.join()
        check_conservation(self.buffer, self.ledger, CONSUMER, self.sampler.conservation(), self.step)
        self.buffer.close()

    # --- writers -----------------------------------------------------------------------------------

    def _resend(self, facts: Facts) -> None:
        def send(groups: list[dict[str, Any]]) -> None:
            for group in groups:
                self.append(group)

        shares = [facts.unacked[place::_EXPLORERS] for place in range(_EXPLORERS)]
        threads = [threading.Thread(target=guarded, args=(self.notes, send, share)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def append(self, group: dict[str, Any]) -> pa.Table:
        """Append a group in one call and note its acknowledgement; returns its stored rows."""
        appended = self.buffer.append(group_rows(group))
        self.notes.note("acked", group_id=group["group_id"], seqs=appended.seqs)
        return appended.rows

    def explore(self) -> None:
        """Admit, play, store, judge and close one group after another."""
        while not self.stop.is_set():
            with self.book:
                tickets = self.sampler.admit(1, self.versions.latest)
            if not tickets:
                time.sleep(_PAUSE_S)
                continue
            ticket = tickets[0]
            group = {"group_id": ticket.group_id, "ordinal": ticket.ordinal, "version": ticket.version}
            self.notes.note("group", **group)
            rows = self.append(group)
            outcome = ("failed", "broke down half way") if is_failed(group) else ("arrived", "")
            task = TASKS[ticket.ordinal % len(TASKS)].key
            seqs = tuple(rows.column("seq").to_pylist())
            played = Played(ticket, task, outcome[0], seqs, len(group_rows(group)), outcome[1])
            [result] = self.closer.judge([played], rows)
            with self.book:
                self.sampler.close(result)

    def import_rows(self) -> None:
        """Append expert rows without waiting for each call; send old groups again; try to change one."""
        rng = np.random.default_rng([self.orders.seed, 1])
        while not self.stop.is_set():
            fresh = [f"expert/0-{len(self.imported) + place}" for place in range(3)]
            self.imported += fresh
            for group_id in fresh:
                self.notes.note("group", group_id=group_id)
            sent = [(name, self.buffer.submit(group_rows({"group_id": name}))) for name in fresh]
            for group_id, future in sent:
                seqs = future.result(60).seqs
                self.acked[group_id] = list(seqs)  # type: ignore[arg-type]  # None would be a fault
                self.notes.note("acked", group_id=group_id, seqs=seqs)
            self.send_again(fresh[int(rng.integers(3))])
            time.sleep(float(rng.uniform(0, 0.05)))

    def send_again(self, group_id: str) -> None:
        """Rows that are stored are not stored again, and never change."""
        rows = group_rows({"group_id": group_id})
        again = self.buffer.append(rows)
        if again.stored or list(again.seqs) != self.acked[group_id]:
            self.fault(f"group '{group_id}', sent again, was stored again")
        changed = [*rows[:-1], Experience(**{**_fields(rows[-1]), "reward": 0.25})]
        try:
            self.buffer.append(changed)
        except ConflictError:
            return
        self.fault(f"group '{group_id}' was let in with other content")

    # --- the consumer ------------------------------------------------------------------------------

    def consume(self) -> None:
        """Lease, train, settle, publish, checkpoint."""
        rng = np.random.default_rng([self.orders.seed, 3])
        end = (self.step // CHECKPOINT_EVERY + 2) * CHECKPOINT_EVERY if self.orders.finish else None
        while self.step != end:
            lease = self.wait_for_lease()
            facts = self.deliver(lease)
            if lease.step not in self.released and rng.random() < 0.1:
                self.released.add(lease.step)
                self.notes.note("released", step=lease.step)
                with self.book:
                    self.sampler.release(lease, "given back")
                continue
            self.notes.note("trained", **facts)  # the gradient step: from here on it has happened
            self.trained.append(facts)
            with self.book:
                self.sampler.settle(lease)
                if self.step % PUBLISH_EVERY:
                    self.notes.note("version", version=self.versions.issue(self.step))
                else:
                    self.publish(self.step)
            if self.step % CHECKPOINT_EVERY == 0:
                self.checkpoint()

    def wait_for_lease(self) -> Lease:
        """The groups of the next step."""
        while True:
            with self.book:
                lease = self.sampler.lease(CONSUMER, self.step, GROUPS_PER_STEP, self.versions.latest)
            if lease is not None:
                return lease
            time.sleep(_PAUSE_S)

    def deliver(self, lease: Lease) -> dict[str, Any]:
        """Fetch the lease's rows, and note what they were."""
        batch = self.buffer.leased(lease, CentredReward.pipeline_hash)
        content = hashlib.blake2b(repr(batch.table.to_pylist()).encode(), digest_size=16).hexdigest()
        facts = {
            "step": lease.step,
            "digest": lease.digest,
            "seqs": list(lease.seqs),
            "group_ids": list(lease.group_ids),
            "content": content,
        }
        self.notes.note("leased", **facts)
        return facts

    def publish(self, step: int) -> None:
        """Write tiny weights under a new version."""

        def save(directory: Path) -> None:
            (directory / "model.bin").write_bytes(bytes(64) + str(step).encode())
            (directory / "config.json").write_text("{}")

        self.notes.note("version", version=self.versions.publish(step, save).version)

    def checkpoint(self) -> None:
        """Write the trainer's state, complete it, and only then record what it holds."""
        directory = self.checkpoints / f"checkpoint-{self.step}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "trainer.bin").write_bytes(bytes(64))
        checkpoint.seal(directory, self.step, {"trained": self.trained})
        self.notes.note("sealed", step=self.step)
        self.ledger.consume(CONSUMER, self.step)
        checkpoint.prune(self.checkpoints, keep=2)

    def fault(self, what: str) -> None:
        """Tell the outside ledger what should not be."""
        self.notes.note("fault", what=what)


def open_buffer(orders: Orders) -> Buffer:
    """The buffer, with this process as its owner."""
    return Buffer(orders.root / "buffer", durability=orders.durability)


def keep(buffer: Buffer, seed: int, stop: threading.Event) -> None:
    """Compact everything now and then."""
    rng = np.random.default_rng([seed, 2])
    while not stop.wait(float(rng.uniform(0.2, 0.8))):
        buffer.compact()


def _fields(row: Experience) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}


def guarded(notes: Notes, role: Callable[..., None], *args: Any) -> None:
    """Run a role; whatever it raises ends the process and is a finding."""
    try:
        role(*args)
    except BaseException:  # noqa: BLE001 - the edge of a child: the traceback goes to the outside ledger
        notes.note("fault", what=traceback.format_exc()[-2000:])
        os._exit(FAULT_EXIT)


def live(orders: Orders) -> None:
    """The whole life of a child that is a run."""
    guarded(Notes(orders.root), lambda: RunStart(orders).run())


def own(orders: Orders) -> None:
    """The whole life of a child that is a hub."""

    def serve() -> None:
        assert orders.hub is not None  # noqa: S101 - for the type checker
        address, token = orders.hub
        with (
            open_buffer(orders) as buffer,
            HubServer(buffer, port=int(address.rsplit(":", 1)[1]), token=token),
        ):
            keep(buffer, orders.seed, threading.Event())

    guarded(Notes(orders.root), serve)
