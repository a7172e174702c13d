"""Images in messages: a part names a stored payload, so no image is copied into a row.

A part is `{"type": "image", "image": "payload:ID"}`, or OpenAI's `image_url` with such a url.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rft_data.core.errors import RowError
from rft_data.core.rows import Message

REFERENCE = re.compile(r"payload:([0-9a-f]{32})")
"""The form of a value that stands for a stored payload."""
PROCESSOR = "processor"
"""Key of a row's metadata: the hash of what made tensors of its images."""
_KINDS = ("image", "image_url")
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"%PDF-", "application/pdf"),
)


def media_type(data: bytes) -> str:
    """The media type that the first bytes tell, else `application/octet-stream`."""
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12], "application/octet-stream")
    return "application/octet-stream"


def image_part(payload_id: str) -> dict[str, str]:
    """The part of a message that shows a stored image."""
    return {"type": "image", "image": f"payload:{payload_id}"}


def image_ids(messages: Iterable[Message]) -> tuple[str, ...]:
    """The payload ids of the images in the order shown; one that is shown twice is there twice.

    Raises: RowError for an image that is no stored payload.
    """
    return tuple(
        _payload_id(part)
        for message in messages
        if isinstance(message.get("content"), list | tuple)
        for part in message["content"]
        if part.get("type") in _KINDS
    )


def shows_images(messages: Iterable[Message]) -> bool:
    """Whether one of the messages shows an image, stored or not."""
    return any(
        part.get("type") in _KINDS
        for message in messages
        if isinstance(message.get("content"), list | tuple)
        for part in message["content"]
    )


def for_template(messages: Sequence[Message]) -> list[dict[str, object]]:
    """The messages as chat templates expect them: an image is `{"type": "image"}`, wherever it is stored."""
    return [
        {**message, "content": [_for_template(part) for part in message["content"]]}
        if isinstance(message.get("content"), list | tuple)
        else dict(message)
        for message in messages
    ]


def _for_template(part: Mapping[str, object]) -> Mapping[str, object]:
    return {"type": "image"} if part.get("type") in _KINDS else part


def _payload_id(part: Mapping[str, Any]) -> str:
    value = part.get(part["type"])
    if isinstance(value, Mapping):
        value = value.get("url")
    found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise RowError(
            f"a message shows an image that is no stored payload ({str(value)[:60]!r}); put it into a "
            "column of the row and write 'images: COLUMN' in the taskset, or store its bytes with "
            "Buffer.add_payload and name it as 'payload:ID'."
        )
    return found[1]
