"""Rows of JSON files, read strictly: one object per line, or one array of objects, in bounded memory.

A row with NaN, an infinity, a lone surrogate or a repeated key, or that is no object, is bad; other rows are
read. A file that is cut off (a truncated archive, an array without end) raises an error that names the line.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from rft_data.core.errors import MissingFileError, RowError
from rft_data.core.json_types import Json

MAX_LINE_BYTES = 64 << 20
"""Largest row, in bytes; a larger one is a bad row."""
_CODECS = {".gz": "gzip", ".zst": "zstd"}
_OTHERS = {b"PAR1": ("Parquet", ".parquet"), b"ARROW1": ("Arrow", ".arrow")}
"""Kinds of files that are not JSON, and how their names end, by what they begin with."""
_CHUNK = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]+")


@dataclass(frozen=True, slots=True)
class Found:
    """One row of a source, or the reason why it cannot be read."""

    place: str
    """`file:line`, or `file:row` where there are no lines."""
    row: Mapping[str, object] | None
    """None when it cannot be read."""
    reason: str = ""
    """Reason why it cannot be read."""
    excerpt: str = ""
    """The beginning of a bad row, at most 4,096 characters."""


def open_file(path: Path) -> io.BufferedReader:
    """The file's bytes, unpacked when its name ends in .gz or .zst."""
    return io.BufferedReader(pa.input_stream(str(path), compression=_CODECS.get(path.suffix)), _CHUNK)


def read_json(path: Path) -> Iterator[Found]:
    """Rows of a .jsonl or .json file.

    Raises: RowError when the rest of the file cannot be read, or it is of another kind.
    """
    line = 0
    try:
        with open_file(path) as stream:
            if kind := next((_OTHERS[one] for one in _OTHERS if stream.peek(8).startswith(one)), None):
                raise RowError(f"{path}: it is a {kind[0]} file; give it a name that ends in {kind[1]}.")
            if _first_byte(stream) == b"[":
                yield from _array(stream, path)
                return
            if _is_spread(stream, path):
                yield _Window(stream, path).only()
                return
            for line, text in _lines(stream):
                if text is None:
                    yield Found(f"{path}:{line}", None, f"the line has more than {MAX_LINE_BYTES} bytes")
                elif text.strip():
                    yield parse_line(text, f"{path}:{line}")
    except (OSError, pa.ArrowException) as err:
        raise RowError(f"{path}:{line + 1}: the file cannot be read on: {err}.") from err


def read_objects(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    """(`file:line`, object) of each line of a file, none of which may be bad.

    Raises: MissingFileError; RowError for the first bad row, and for a file of another kind.
    """
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}; give the path of a JSON-lines file.")
    with path.open("rb") as file:
        head = file.read(6)
    if kind := next((kind for start, (kind, _) in _OTHERS.items() if head.startswith(start)), None):
        raise RowError(
            f"{path}: not JSON lines: it is a {kind} file. Source 'jsonl' reads one JSON object a line; "
            f"other files are read with source: {{use: file, path: {path}}}."
        )
    for found in read_json(path):
        if found.row is None:
            raise RowError(f"{found.place}: {found.reason}.")
        yield found.place, found.row


def _first_byte(stream: io.BufferedReader) -> bytes:
    head = stream.peek(4096)[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    return head[:1]


def _is_spread(stream: io.BufferedReader, path: Path) -> bool:
    """Whether a .json file is one object over several lines: its first line ends inside it."""
    first = stream.peek(4096)[:4096].removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0].rstrip()
    return ".json" in path.suffixes and first[:1] == b"{" and first[-1:] in (b"{", b"[", b",")


def _lines(stream: io.BufferedReader) -> Iterator[tuple[int, bytes | None]]:
    """(number from 1, line); None for a line that is too long."""
    number = 0
    while text := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            text = text.removeprefix(b"\xef\xbb\xbf")
        if len(text) > MAX_LINE_BYTES and not text.endswith(b"\n"):
            while text and not text.endswith(b"\n"):
                text = stream.readline(_CHUNK)
            yield number, None
        else:
            yield number, text


class _Strict:
    """A decoder that notes what strict JSON forbids and goes on, so that the end of the row is found."""

    def __init__(self) -> None:
        self.fault = ""
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object, parse_constant=self._constant, parse_float=self._float
        )

    def decode(self, text: str, start: int = 0) -> tuple[Json, int]:
        """(value, where it ends). Sets `fault`: what strict JSON forbids in the value, or empty."""
        self.fault = ""
        return self._json.raw_decode(text, start)

    def _object(self, pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        made = dict(pairs)
        if len(made) != len(pairs):
            names = [name for name, _ in pairs]
            self.fault = f"the key '{next(n for n in names if names.count(n) > 1)}' is there more than once"
        return made

    def _constant(self, name: str) -> None:
        self.fault = f"{name} is not JSON"

    def _float(self, text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            self.fault = f"the number {text[:40]} is too large"
        return value


def parse_line(raw: bytes, place: str) -> Found:
    """One line as a row."""
    excerpt = raw[:4096].rstrip(b"\r\n").decode("utf-8", "backslashreplace")
    strict = _Strict()
    try:
        text = raw.decode().rstrip()
        value, end = strict.decode(text, len(text) - len(text.lstrip()))
        if end != len(text):
            strict.fault = f"something follows the object, at column {end + 1}"
    except UnicodeDecodeError as err:
        return Found(place, None, f"not UTF-8: {err.reason} at byte {err.start}", excerpt)
    except RecursionError:
        return Found(place, None, "nested too deep", excerpt)
    except ValueError as err:
        what = (
            f"{err.msg.removesuffix(' at')} at column {err.colno}"
            if isinstance(err, json.JSONDecodeError)
            else str(err)
        )
        return Found(place, None, f"not JSON: {what}", excerpt)
    return as_row(value, strict.fault, place, excerpt)


def as_row(value: Json, fault: str, place: str, excerpt: str) -> Found:
    """A decoded value as a row: a bad one if it has a fault, or is no object."""
    if not fault and isinstance(value, dict):
        return Found(place, value)
    return Found(place, None, fault or f"found {type(value).__name__}, wanted an object", excerpt)


class _Window:
    """The part of a JSON array that is in memory, and the number of the current line."""

    def __init__(self, stream: io.BufferedReader, path: Path) -> None:
        self._stream = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        self._path = path
        self._text = ""
        self._at = 0
        self.line = 1

    def next(self) -> str:
        """The next character that is no space, without passing it; "" at the end of the file."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self.skip_to(match.end() if match else self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def skip_to(self, end: int) -> None:
        """Move to a place in the text and count the lines passed."""
        self.line += self._text.count("\n", self._at, end)
        self._at = end

    def skip(self) -> None:
        """Pass one character."""
        self.skip_to(self._at + 1)

    def only(self) -> Found:
        """The one object of the file. Raises: RowError if it does not end, or something follows it."""
        self.next()
        found = self.element(_Strict(), alone=True)
        if self.next():
            raise self.broken("something follows the object; a file of several has one on each line")
        return found

    def element(self, strict: _Strict, *, alone: bool = False) -> Found:
        """The element that begins here; reads on until it is complete. `alone`: no bracket follows it."""
        while True:
            try:
                value, end = strict.decode(self._text, self._at)
                whole = alone or end < len(self._text)
                problem = "it stops before the closing bracket"
            except (ValueError, RecursionError) as err:
                whole, problem = False, str(err)
            if whole:
                place = f"{self._path}:{self.line}"
                excerpt = (
                    self._text[self._at : min(end, self._at + 4096)]
                    .encode(errors="backslashreplace")
                    .decode()
                )
                self.skip_to(end)
                return as_row(value, strict.fault, place, excerpt)
            if len(self._text) - self._at > MAX_LINE_BYTES or not self._more():
                raise self.broken(problem)

    def _more(self) -> bool:
        """Read on and forget the text passed. It reads at least as much as it holds, for long elements."""
        held = self._text[self._at :]
        read = self._stream.read(max(_CHUNK, len(held)))
        self._text, self._at = held + read, 0
        return bool(read)

    def broken(self, problem: str) -> RowError:
        """The error for a file whose rest cannot be read."""
        return RowError(f"{self._path}:{self.line}: the JSON cannot be read on: {problem}.")


def _array(stream: io.BufferedReader, path: Path) -> Iterator[Found]:
    """The elements of one JSON array."""
    window, strict = _Window(stream, path), _Strict()
    window.next()
    window.skip()
    if window.next() == "]":
        return
    while True:
        yield window.element(strict)
        mark = window.next()
        if mark == "]":
            return
        if mark != ",":
            raise window.broken(f"found {mark!r}, wanted ',' or ']'")
        window.skip()
        window.next()
