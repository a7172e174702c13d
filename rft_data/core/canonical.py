"""JSON texts that are equal where their values are, and ids made of such texts.

Both forms write any mapping as an object and any sequence but bytes as a list, have no spaces, keep every
character as it is, and refuse NaN and infinities.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


_AS_GIVEN = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)
_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
)


def json_as_given(value: object) -> str:
    """JSON with the keys in their order. Raises: ValueError for NaN and infinities; TypeError."""
    return _AS_GIVEN.encode(value)


def canonical_json(value: object) -> str:
    """JSON with the keys sorted. Raises: ValueError for NaN and infinities; TypeError."""
    return _CANONICAL.encode(value)


def content_id(*parts: object) -> str:
    """A 128-bit hex name for `parts`, the same on every machine and in every process."""
    return bytes_id(canonical_json(list(parts)).encode())


def bytes_id(data: bytes) -> str:
    """blake2b-128 of some bytes as hex; used as their id."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
