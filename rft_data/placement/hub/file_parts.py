"""Files of a run as they are sent: many nodes fetch the same one at the same time, and it is read once.

A part is kept only while an answer holds it, so memory grows with what is being sent, not with its receivers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import pyarrow as pa

from rft_data.core.files import file_digest
from rft_data.core.once import Once
from rft_data.placement.hub.arrow_rows import encoded

PART_BYTES = 16 << 20
"""Bytes of a file that one call sends."""
_DIGESTS = 4096
"""Digests that are kept, those asked for last: more than a run's folders have files at one time. Each new
version of the weights brings others."""
PART = pa.schema([pa.field("data", pa.large_binary(), nullable=False)])

_Facts = tuple[str, int, int]
"""Path, size and time of the last change: other bytes have others."""


class FileParts:
    """Parts of files, and digests of whole ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._digests: OrderedDict[_Facts, Once[str]] = OrderedDict()
        self._parts: WeakValueDictionary[tuple[_Facts, int], Once[pa.Buffer]] = WeakValueDictionary()

    @property
    def held(self) -> int:
        """Parts that answers hold."""
        return len(self._parts)

    def digest(self, path: Path) -> str:
        """A file's digest, computed once as long as it does not change and is asked for now and then."""
        facts = _facts(path)
        with self._lock:
            once = self._digests.setdefault(facts, Once(partial(file_digest, path)))
            self._digests.move_to_end(facts)
            if len(self._digests) > _DIGESTS:
                self._digests.popitem(last=False)
        return once.value()

    def part(self, path: Path, offset: int) -> Once[pa.Buffer]:
        """Up to PART_BYTES of a file as an Arrow stream. Raises: OSError if it is gone; its value too."""
        with self._lock:
            return self._parts.setdefault((_facts(path), offset), Once(partial(_stream, path, offset)))


def _facts(path: Path) -> _Facts:
    found = path.stat()
    return str(path), found.st_size, found.st_mtime_ns


def _stream(path: Path, offset: int) -> pa.Buffer:
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(PART_BYTES)
    ends = pa.array([0, len(data)], pa.int64()).buffers()[1]
    rows = pa.Array.from_buffers(PART[0].type, 1, [None, ends, pa.py_buffer(data)])  # no copy
    return encoded(pa.record_batch([rows], schema=PART))
