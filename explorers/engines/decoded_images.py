"""Images of requests as pixels: each is read and decoded once while there is room for it."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from explorers.engines.images import Fetch
from rft_data.core.errors import RowError
from rft_data.core.large_blocks import give_back_large_blocks
from rft_data.core.lookup import need

if TYPE_CHECKING:
    from PIL.Image import Image

_ROOM = 256 << 20
"""Bytes of pixels that are kept; the newest image is kept whatever its size."""
_PIXEL_BYTES = 4
"""What PIL takes for a pixel with three colours."""


class DecodedImages:
    """Pixels by payload id; safe to use from several threads."""

    def __init__(self, fetch: Fetch, room: int = _ROOM) -> None:
        """`fetch`: bytes of a payload id. `room`: bytes of pixels that are kept."""
        self._fetch = fetch
        self._room = room
        self._kept: OrderedDict[str, Image] = OrderedDict()
        self._lock = threading.Lock()
        give_back_large_blocks()

    def __call__(self, name: str) -> Image:
        """The image of a payload. Raises: RowError for bytes that are no image."""
        with self._lock:  # two requests that ask at once share one decoding
            image = self._kept.pop(name, None)
            if image is None:
                image = _pixels(name, self._fetch(name))
            self._kept[name] = image
            while len(self._kept) > 1 and sum(map(_size, self._kept.values())) > self._room:
                self._kept.popitem(last=False)
            return image


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
