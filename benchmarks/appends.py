"""Appends to the buffer, to SQLite queues and to bare Lance tables, in turns and at equal terms."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.floors import BareTable
from benchmarks.peers import PEERS, ArrowFile
from benchmarks.rows import RowMaker, as_objects
from benchmarks.turns import Cost, cost, figures_of, take_turns
from rft_data.buffer import Buffer
from rft_data.buffer.durability import Durability
from rft_data.core.schema import INCOMING

TOKENS = 1000
CLIENTS = 4
DURABILITIES: tuple[Durability, ...] = ("process", "power")
FORMS = ("encoded", "objects")
WINDOW = 64
"""Appends a client sends before it waits for the oldest."""
FLOOR_ROWS = 512
"""A bare table takes them in one `add`; of 8 rows in turn, a fourth of them, as each is a commit."""


class Calls:
    """The rows of each slice, as tables of one call each; only those of one slice are kept."""

    def __init__(self, per_call: int, rows: int) -> None:
        """`rows` a slice."""
        self._maker, self._per_call, self._count = RowMaker(TOKENS), per_call, rows // per_call
        self._number, self._tables = -1, list[pa.Table]()

    def of(self, number: int) -> Sequence[pa.Table]:
        """Those of a slice; all contenders are given the same."""
        if number != self._number:
            self._number = number
            self._tables = [self._maker.table(self._per_call) for _ in range(self._count)]
        return self._tables


def from_clients(send: Callable[[Any], Future[Any] | None], parts: Sequence[Any]) -> None:
    """Send every part from CLIENTS threads and wait until all are acknowledged."""

    def client(mine: Sequence[Any]) -> None:
        waiting: deque[Future[Any]] = deque()
        for part in mine:
            if (future := send(part)) is not None:
                waiting.append(future)
            if len(waiting) >= WINDOW:
                waiting.popleft().result()
        for future in waiting:
            future.result()

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(client, (parts[i::CLIENTS] for i in range(CLIENTS))))


def append_costs(folder: Path, per_call: int, rows: int, rounds: int) -> dict[str, float]:
    """Appends with calls of `per_call` rows, `rows` a slice: `FIGURE, DURABILITY, FORM, SYSTEM`.

    Figures: `rows_per_s` and `cpu_us` (a row), medians of the slices; of the buffer to SYSTEM, `ratio`,
    `ratio_low` and `ratio_high`. Durability: `process` (no fsync) and `power` (fsync before each
    acknowledgement). Form: `encoded` (Arrow tables here, tuples of values for SQLite) and `objects`
    (`Experience` with NumPy arrays).
    """
    calls = Calls(per_call, rows)
    figures: dict[str, float] = {}
    for durability in DURABILITIES:
        for form in FORMS:
            with tempfile.TemporaryDirectory(dir=folder) as name, ExitStack() as opened:
                contenders = _contenders(Path(name), opened, calls, durability, form)
                costs = take_turns(contenders, rounds)
            figures |= figures_of("buffer", costs, durability, form)
    return figures


def _contenders(
    folder: Path, opened: ExitStack, calls: Calls, durability: Durability, form: str
) -> Mapping[str, Callable[[int], Cost]]:
    fsync = durability == "power"
    buffer = opened.enter_context(Buffer(folder / "buffer", durability=durability))
    queues = {
        system: opened.enter_context(closing(peer(folder / f"{system}.db", fsync=fsync)))
        for system, peer in PEERS.items()
    }
    contenders = {"buffer": partial(_slice, buffer.submit, calls, as_objects if form == "objects" else None)}
    for system, queue in queues.items():
        if form == "objects":
            contenders[system] = partial(_slice, queue.append, calls, as_objects)
        else:
            make = partial(_encoded, queue.encoded)
            contenders[system] = partial(_slice, queue.insert, calls, make)
    return contenders | (_floors(folder, calls.of(0), fsync=fsync) if form == "encoded" else {})


def _encoded(encode: Callable[[Any], Any], table: pa.Table) -> Any:
    return encode(as_objects(table))


def _slice(
    send: Callable[[Any], Future[Any] | None],
    calls: Calls,
    make: Callable[[pa.Table], Any] | None,
    number: int,
) -> Cost:
    """One slice from all clients; what `make` makes of the tables is made before the clock starts."""
    parts = [make(table) for table in calls.of(number)] if make else calls.of(number)
    return cost(sum(map(len, parts)), lambda: from_clients(send, parts))


def _floors(folder: Path, calls: Sequence[pa.Table], *, fsync: bool) -> dict[str, Callable[[int], Cost]]:
    """Bare `add`s of the same rows, one after another, of 8 and of 512; an Arrow file if synced."""
    with Buffer(folder / "sample") as buffer:
        buffer.append(pa.concat_tables(calls).slice(0, FLOOR_ROWS))
        stored = buffer.read("experiences")
    contenders: dict[str, Callable[[int], Cost]] = {}
    for size, count in ((8, FLOOR_ROWS // 4), (FLOOR_ROWS, FLOOR_ROWS)):
        bare = BareTable(folder, f"bare{size}", stored.schema, fsync=fsync)
        parts = [stored.slice(at, size).combine_chunks() for at in range(0, min(count, len(stored)), size)]
        contenders[f"bare add of {size}"] = partial(_one_by_one, bare.add, parts)
    if fsync:
        file = ArrowFile(folder / "floor.arrow", INCOMING)
        contenders["arrow file"] = partial(_one_by_one, file.append, calls)
    return contenders


def _one_by_one(act: Callable[[pa.Table], object], parts: Sequence[pa.Table], _: int) -> Cost:
    return cost(sum(map(len, parts)), lambda: [act(part) for part in parts])
