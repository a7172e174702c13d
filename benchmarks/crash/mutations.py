"""Broken systems, to show that the harness sees what it claims to see. Applied inside a child only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pyarrow as pa

from rft_data.buffer.experiences import Experiences
from rft_data.buffer.store import Store
from rft_data.sampler.ledger import Ledger

_add = Store.add


def acknowledge_early() -> None:
    """Rows are acknowledged, and stored a little later."""

    def add(self: Store, name: str, rows: pa.Table) -> None:
        if name != "experiences":
            return _add(self, name, rows)

        def later() -> None:
            time.sleep(0.02)
            _add(self, name, rows)

        threading.Thread(target=later, daemon=True).start()
        return None

    Store.add = add  # type: ignore[method-assign]


def forget_ids() -> None:
    """A row that is sent again is stored again."""
    Experiences._known = lambda self, ids: {}  # type: ignore[method-assign]


def split_commits() -> None:
    """An append becomes two commits."""

    def add(self: Store, name: str, rows: pa.Table) -> None:
        half = rows.num_rows // 2
        if name == "experiences" and half:
            _add(self, name, rows.slice(0, half))
            time.sleep(0.02)
            rows = rows.slice(half)
        _add(self, name, rows)

    Store.add = add  # type: ignore[method-assign]


def forget_leases() -> None:
    """A restarted ledger knows nothing of the leases before it."""
    load = Ledger._load

    def load_without(self: Ledger) -> None:
        load(self)
        self._leases.clear()
        self._uses.clear()

    Ledger._load = load_without  # type: ignore[method-assign]


MUTATIONS: dict[str, Callable[[], None]] = {
    "acknowledge_early": acknowledge_early,
    "forget_ids": forget_ids,
    "split_commits": split_commits,
    "forget_leases": forget_leases,
}
