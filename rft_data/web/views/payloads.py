"""The images of messages, by their content's hash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Path
from fastapi.responses import Response

from rft_data.core.errors import MissingFileError, RowError
from rft_data.core.filters import Compare
from rft_data.core.images import media_type
from rft_data.web.page import Route, View

SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Kinds of images that hold no script."""
_MOST_BYTES = 32 << 20
_HEADERS = {"content-security-policy": "default-src 'none'; sandbox", "x-content-type-options": "nosniff"}


class PayloadViews(View):
    """Images and other payloads of messages."""

    def routes(self) -> Iterator[Route]:
        yield Route("/s/{key}/payloads/{payload_id}", self.payload)

    def payload(self, key: str, payload_id: Annotated[str, Path(pattern="^[0-9a-f]{32}$")]) -> Response:
        """An image whose first bytes say what it is, whatever its stored type says.

        Raises: MissingFileError for one that is not stored; RowError for one that is no image, or too large.
        """
        buffer = self._page.subjects.buffer(key)
        named = Compare("payload_id", "eq", payload_id)
        sizes = buffer.read("payloads", ["size"], named, 1)["size"].to_pylist()
        if not sizes:
            raise MissingFileError(f"buffer {buffer.location} has no payload '{payload_id}'.")
        if sizes[0] > _MOST_BYTES:
            raise RowError(
                f"payload '{payload_id}' has {sizes[0]:,} bytes; the page shows up to {_MOST_BYTES:,}."
            )
        data = buffer.payload(payload_id)[1]
        kind = media_type(data)
        if kind not in SHOWN:
            raise RowError(f"payload '{payload_id}' is {kind}; the page shows {', '.join(SHOWN)}.")
        return Response(data, media_type=kind, headers=_HEADERS)
