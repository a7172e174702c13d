"""Images of requests as pixels: each is read and decoded once while there is room for it."""

from __future__ import annotations

import ctypes
import io
import os
import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from explorers.engines.images import Fetch
from rft_data.core.errors import RowError
from rft_data.core.lookup import need
from rft_data.core.once import Once

if TYPE_CHECKING:
    from PIL.Image import Image

_ROOM = 256 << 20
"""Bytes of pixels that are kept; the newest image is kept whatever its size."""
_PIXEL_BYTES = 4
"""Bytes of a pixel with three colours in PIL."""
_LARGE = 8 << 20
"""Bytes of the smallest block that goes back at once."""
_M_MMAP_THRESHOLD = -3
_SAID_OTHERWISE = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables by which a user sets this."""


class DecodedImages:
    """Pixels by payload id; safe to use from several threads."""

    def __init__(self, fetch: Fetch) -> None:
        """`fetch`: bytes of a payload id."""
        self._fetch = fetch
        self._kept: OrderedDict[str, Image] = OrderedDict()
        self._decoding: WeakValueDictionary[str, Once[Image]] = WeakValueDictionary()
        """Images that threads decode or wait for."""
        self._lock = threading.Lock()
        _give_back_large_blocks()

    def __call__(self, name: str) -> Image:
        """The image of a payload. Raises: RowError for bytes that are no image."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
            # Requests that ask at once share one decoding; it lives until each of them has kept the image.
            once = self._decoding.setdefault(name, Once(partial(self._decoded, name)))
        image = once.value()  # without the lock: other images are decoded meanwhile
        with self._lock:
            self._keep(name, image)
        return image

    def _decoded(self, name: str) -> Image:
        return _pixels(name, self._fetch(name))

    def _keep(self, name: str, image: Image) -> None:
        self._kept[name] = image
        self._kept.move_to_end(name)
        while len(self._kept) > 1 and sum(map(_size, self._kept.values())) > _ROOM:
            self._kept.popitem(last=False)


def _size(image: Image) -> int:
    return int(image.width * image.height * _PIXEL_BYTES)


def _pixels(name: str, data: bytes) -> Image:
    """The image as pixels. Raises: RowError."""
    library = need("PIL.Image", "images", "images in prompts")
    try:
        found: Image = library.open(io.BytesIO(data)).convert("RGB")  # a copy: what was opened holds `data`
    except (OSError, ValueError) as err:
        raise RowError(f"payload '{name}' is no image that can be read: {err}") from err
    return found


def _give_back_large_blocks() -> None:
    """Have freed blocks of pixels go back to the system at once, where the allocator is glibc's.

    Left alone it keeps freed blocks of up to 32 MiB, for each thread that had one. A block costs page faults
    each time then, so only what needs it asks for it.
    """
    setting = getattr(ctypes.CDLL(None), "mallopt", None)
    if setting is not None and not any(name in os.environ for name in _SAID_OTHERWISE):
        setting(_M_MMAP_THRESHOLD, _LARGE)
