"""First-in-first-out leases of the buffer and of SQLite queues, in turns and at equal terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.appends import TOKENS
from benchmarks.floors import BareLeases
from benchmarks.peers import PEERS, SqliteQueue
from benchmarks.rows import GROUP, RowMaker, arrays_of_rows, as_objects, group_result
from benchmarks.turns import Cost, cost, figures_of, take_turns
from rft_data.buffer import Buffer
from rft_data.core.groups import GroupResult
from rft_data.sampler.ledger import Ledger

TERMS = ("hot", "reopened")
FORMS = ("encoded", "arrays")


class Stores:
    """The buffer and SQLite's two ways, with the same rows; opened together, leased from in turns."""

    def __init__(self, folder: Path, groups: int, step: int, maker: RowMaker, opened: ExitStack) -> None:
        """`groups` a lease, of which `step` have been granted; `maker` makes the next rows."""
        self._groups, self._step, self._maker = groups, step, maker
        self._folder = folder / "buffer"
        self._buffer = opened.enter_context(Buffer(self._folder))
        self._ledger = Ledger(self._buffer, "run", step)
        self._ledger.attach("trainer")
        self._queues = {
            name: opened.enter_context(closing(peer(folder / f"{name}.db", fsync=False)))
            for name, peer in PEERS.items()
        }

    def fill(self, leases: int) -> None:
        """Store rows for so many leases everywhere."""
        table = self._next_rows(leases)
        self._buffer.append(table)
        for queue in self._queues.values():
            queue.append(as_objects(table))

    def contenders(self, form: str, *, hot: bool) -> dict[str, Callable[[int], Cost]]:
        """One lease of each system; if `hot`, of rows that it is given just before."""
        rows, given = self._groups * GROUP, dict[int, pa.Table]()

        def of_slice(number: int) -> pa.Table:
            if number not in given:
                given.clear()
                given[number] = self._next_rows(1)
            return given[number]

        def buffer(number: int) -> Cost:
            if hot:
                self._buffer.append(of_slice(number))
            groups = self._next_groups()
            return cost(rows, partial(self._leased, form, groups))

        def of_queue(queue: SqliteQueue, number: int) -> Cost:
            if hot:
                queue.append(as_objects(of_slice(number)))
            return cost(rows, partial(queue.lease, rows, decode=form == "arrays"))

        contenders = {"buffer": buffer}
        contenders |= {name: partial(of_queue, one) for name, one in self._queues.items()}
        return contenders | (self._floors(read=not hot) if form == "encoded" else {})

    def _floors(self, *, read: bool) -> dict[str, Callable[[int], Cost]]:
        """Lance alone: the commit of a lease's row, and if `read` the same rows."""
        rows, bare = self._groups * GROUP, BareLeases(self._folder)
        first = self._step * rows
        commit = {"bare commit": lambda _: cost(rows, bare.commit)}
        if not read:
            return commit

        def both(number: int) -> Cost:
            def act() -> None:
                bare.commit()
                bare.read(range(first + number * rows, first + (number + 1) * rows))

            return cost(rows, act)

        return {**commit, "bare commit and read": both}

    def _next_rows(self, leases: int) -> pa.Table:
        return self._maker.table(self._groups * GROUP * leases)

    def _next_groups(self) -> list[GroupResult]:
        first = self._step * self._groups
        return [group_result(number) for number in range(first, first + self._groups)]

    def _leased(self, form: str, groups: Sequence[GroupResult]) -> Any:
        granted = self._ledger.grant("trainer", self._step, 1, groups)
        self._step += 1
        table: pa.Table = self._buffer._experiences.take(granted.seqs, trained_only=True)
        return arrays_of_rows(table) if form == "arrays" else table


def lease_costs(folder: Path, groups: int, rounds: int) -> dict[str, float]:
    """Leases of `groups` groups of eight, ledger included: `FIGURE, TERM, FORM, SYSTEM`.

    Figures as those of `append_costs`. Term: `hot`, of rows that were appended just before, and `reopened`,
    by stores that have been closed and opened again. Form: `encoded` (an Arrow table; tuples of values, or
    rows that are still pickled) and `arrays` (each row's lists as NumPy arrays; unpickled rows). All but
    pickled rows have the columns that a step depends on.
    """
    maker = RowMaker(TOKENS)
    figures: dict[str, float] = {}
    step, slices = 0, rounds + 1
    for term in TERMS:
        if term == "reopened":
            with ExitStack() as opened:
                Stores(folder, groups, step, maker, opened).fill(slices * len(FORMS))
        with ExitStack() as opened:
            stores = Stores(folder, groups, step, maker, opened)
            for form in FORMS:
                costs = take_turns(stores.contenders(form, hot=term == "hot"), rounds)
                figures |= figures_of("buffer", costs, term, form)
                step += slices
    return figures
