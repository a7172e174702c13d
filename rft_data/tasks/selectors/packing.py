"""Arrays as text, for selector states that are stored as JSON."""

from __future__ import annotations

import base64

import numpy as np


def pack(array: np.ndarray) -> str:
    """The array's little-endian bytes as base64 (4 characters for 3 bytes)."""
    ordered = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(ordered.tobytes()).decode("ascii")


def unpack(text: str, dtype: np.dtype | type) -> np.ndarray:
    """Inverse of `pack`; the array is flat and writable."""
    stored = np.frombuffer(base64.b64decode(text), np.dtype(dtype).newbyteorder("<"))
    return stored.astype(dtype)
