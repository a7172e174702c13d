"""Puts the calls of a log together by conversation, on disk: the calls of one may lie anywhere in a file."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict

from rft_data.core.errors import RowError
from rft_data.core.json_types import Json
from rft_data.exchange.formats.jsonlines import Found
from rft_data.exchange.formats.records import Row
from rft_data.exchange.formats.traces.call import Item, Score, Span
from rft_data.exchange.formats.traces.chains import join_chains

Parse = Callable[[Row], Iterator[Item | RowError]]
"""The items of one row of a log, an error for each that cannot be read. Raises: RowError for a bad row."""
_TABLES = """
CREATE TABLE items (n INTEGER PRIMARY KEY, kind TEXT, id TEXT, trace TEXT, parent TEXT, session TEXT,
                    started REAL, place TEXT, body TEXT);
CREATE INDEX by_trace ON items (trace, kind);
CREATE INDEX by_id ON items (id, kind);
"""
_JOIN = """
UPDATE items
 SET trace = coalesce((SELECT s.trace FROM items s WHERE s.kind = 'span' AND s.id = items.id), '')
 WHERE kind = 'score' AND trace = '';
CREATE TABLE traces AS
 SELECT trace, coalesce(max(nullif(session, '')), trace) AS conversation, min(n) AS first
 FROM items WHERE kind = 'span' GROUP BY trace;
CREATE INDEX by_conversation ON traces (conversation);
"""
_OF_KIND = """SELECT items.body, items.place, items.id, items.trace FROM items JOIN traces USING (trace)
 WHERE conversation = ? AND kind = ? ORDER BY started, n"""
_STRAY = "SELECT body, place FROM items WHERE kind = 'score' AND trace NOT IN (SELECT trace FROM traces)"
_EXCERPT = 4096


def by_conversation(parse: Parse, rows: Iterator[Found]) -> Iterator[Found]:
    """One row for each conversation, `{"calls", "scores"}`; before these the rows and spans that are bad.

    Calls belong to one conversation when they have one session, or else one trace, or one chain of traces
    (`join_chains`). A score about a root span is about its trace, one about a trace about its last call.
    Raises: RowError when the rest of the source cannot be read, after the conversations before that.
    """
    with closing(sqlite3.connect("")) as store:  # "": a file of its own that goes with the connection
        store.executescript(_TABLES)
        end: RowError | None = None
        try:
            for found in rows:
                yield from _bad(found, _parsed(parse, found, store))
        except RowError as err:
            end = err
        store.executescript(_JOIN)
        join_chains(store)
        some = False
        for made in _conversations(store):
            some = True
            yield made
        if end is not None:
            raise end
        if not some:
            yield Found("the source", None, "no span in it is a call of a model that was answered")


def _bad(found: Found, problems: Iterator[str]) -> Iterator[Found]:
    for problem in problems:
        text = found.excerpt if found.row is None else json.dumps(found.row, default=str)
        yield Found(found.place, None, problem, text[:_EXCERPT])


def _parsed(parse: Parse, found: Found, store: sqlite3.Connection) -> Iterator[str]:
    """Keep what a row holds; the reasons why something of it is not kept."""
    if found.row is None:
        yield found.reason
        return
    try:
        row: Row = json.loads(json.dumps(found.row, default=_as_json))
        for item in parse(row):
            if isinstance(item, RowError):
                yield str(item)
            elif isinstance(item, Score) and item.value is not None and not math.isfinite(item.value):
                yield f"score {item.name!r} is {item.value}; a finite number is needed"
            else:
                _keep(store, item, found.place)
    except RowError as err:
        yield str(err)
    except RecursionError:
        yield "it is nested too deeply"
    except UnicodeEncodeError:
        yield "an id in it has half of a surrogate pair, which is no text"


def _as_json(value: object) -> Json:
    """A time or an array of a table."""
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    raise RowError(f"a value of {type(value).__name__} is in it, which no log holds")


def _keep(store: sqlite3.Connection, item: Item, place: str) -> None:
    if isinstance(item, Score):
        row: Sequence[object] = (
            "score",
            item.span_id,
            item.trace,
            "",
            "",
            0.0,
            place,
            json.dumps(asdict(item)),
        )
    else:
        span = item if isinstance(item, Span) else item.span
        kind, body = ("span", "") if isinstance(item, Span) else ("call", json.dumps(asdict(item)))
        row = (kind, span.span_id, span.trace, span.parent, span.session, span.started_s, place, body)
    store.execute(
        "INSERT INTO items (kind, id, trace, parent, session, started, place, body) VALUES (?,?,?,?,?,?,?,?)",
        row,
    )


def _conversations(store: sqlite3.Connection) -> Iterator[Found]:
    names = store.execute("SELECT conversation FROM traces GROUP BY conversation ORDER BY min(first)")
    for (name,) in names.fetchall():
        # a span written twice: its last; a session's traces may number their spans alike
        calls = {(row[3], row[2]): row for row in store.execute(_OF_KIND, (name, "call"))}
        last = {trace: (trace, span) for trace, span in calls}
        scores = []
        for body, place, about, trace in store.execute(_OF_KIND, (name, "score")).fetchall():
            own = (trace, about)
            call = own if own in calls else last.get(trace) if _is_root(store, about) else None
            if call is None:
                yield _stray(body, place)
            else:
                scores.append({**json.loads(body), "call": list(call)})
        if calls:
            found = [json.loads(row[0]) for row in calls.values()]
            yield Found(next(iter(calls.values()))[1], {"calls": found, "scores": scores})
    for body, place in store.execute(_STRAY):
        yield _stray(body, place)


def _is_root(store: sqlite3.Connection, about: str) -> bool:
    """Whether a score about this span is about the whole trace."""
    if not about:
        return True
    found = store.execute("SELECT parent FROM items WHERE id = ? AND kind = 'span'", (about,)).fetchone()
    return found is not None and not found[0]


def _stray(body: str, place: str) -> Found:
    score = json.loads(body)
    about = f"span {score['span_id']}" if score["span_id"] else f"trace {score['trace']}"
    why = f"score {score['name']!r} is about {about}, of which no answered call of a model is in the source"
    return Found(place, None, why, body[:_EXCERPT])
