"""Traces without a session that continue each other: each call of a log may hold the whole history so far.

A trace whose first call sends all that an earlier one was sent and answered goes on with its conversation.
Two that go on from the same answer are branches: the first one goes on, the other stays by itself.
"""

from __future__ import annotations

import json
import sqlite3

from rft_data.core.errors import RowError
from rft_data.core.json_types import JsonObject
from rft_data.exchange.formats.traces.conversations import digest_after, histories

_JOIN = """UPDATE traces SET conversation = (SELECT b.conversation FROM begun b WHERE b.trace = traces.trace)
 WHERE trace IN (SELECT trace FROM begun)"""
_TAKE = "DELETE FROM ends WHERE digest = ? RETURNING conversation"
_CALLS = """SELECT trace, body FROM items JOIN traces USING (trace)
 WHERE kind = 'call' AND conversation = trace ORDER BY started, n"""


def join_chains(store: sqlite3.Connection) -> None:
    """Give the traces of a chain one conversation, in the table `traces` of a spool."""
    store.execute("CREATE TABLE ends (digest TEXT PRIMARY KEY, conversation TEXT)")
    store.execute("CREATE TABLE begun (trace TEXT PRIMARY KEY, conversation TEXT)")
    for trace, body in store.execute(_CALLS):
        call = json.loads(body)
        try:
            sent = histories(call["messages"])
        except RowError:  # who makes rows of the call says why
            continue
        known = store.execute("SELECT conversation FROM begun WHERE trace = ?", (trace,)).fetchone()
        conversation = known[0] if known else _continued(store, sent) or trace
        store.execute("INSERT OR IGNORE INTO begun VALUES (?, ?)", (trace, conversation))
        if len(call["answers"]) == 1:
            said: JsonObject = call["answers"][0]["message"]
            end = digest_after(sent[-1], said)
            store.execute("INSERT OR REPLACE INTO ends VALUES (?, ?)", (end, conversation))
    store.execute(_JOIN)


def _continued(store: sqlite3.Connection, sent: list[str]) -> str | None:
    """The conversation that these messages go on with, by the longest history that they hold."""
    for digest in reversed(sent):
        found = store.execute(_TAKE, (digest,)).fetchone()
        if found is not None:
            return str(found[0])
    return None
