"""Images of tasks in a file: paths beside it, or data URIs. The prompt names them by their payload ids."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rft_data.core.canonical import bytes_id
from rft_data.core.errors import MissingFileError, RowError
from rft_data.core.images import image_part, media_type
from rft_data.core.rows import Message, Task
from rft_data.core.text import shown
from rft_data.tasks.columns import pick

MARK = "<image>"
"""Mark where a prompt shows its next image; without marks all images come before the text."""
_DATA_URI = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,([A-Za-z0-9+/=]+)")


def store_images(
    rows: Iterable[tuple[str, Mapping[str, object]]],
    field: str,
    folder: Path,
    add: Callable[[bytes, str], str],
) -> None:
    """Store the images of all rows, each once.

    Args: rows: (place, row). folder: where paths of images begin. add: `Buffer.add_payload`.
    """
    stored: set[str] = set()
    for where, row in rows:
        for data in row_images(row, field, where, folder):
            if (name := bytes_id(data)) not in stored:
                stored.add(name)
                add(data, media_type(data))


def with_images(task: Task, row: Mapping[str, object], field: str, where: str, folder: Path) -> Task:
    """The task of a row with its images in the prompt; they are not in the metadata.

    Raises: RowError, MissingFileError naming the row.
    """
    images = list(row_images(row, field, where, folder))
    messages = illustrated(task.messages, images, where) if images else task.messages
    kept = {name: value for name, value in task.metadata.items() if name != field}
    return replace(task, messages=messages, metadata=kept)


def row_images(row: Mapping[str, object], field: str, where: str, folder: Path) -> Iterator[bytes]:
    """The bytes of each image of a line: of a path relative to `folder`, of a data URI, or its own; none
    for null.

    Raises: RowError, MissingFileError naming the line.
    """
    value = pick(row, field, where)
    items = value if isinstance(value, list) else [] if value is None else [value]
    for item in items:
        data = item.get("bytes") if isinstance(item, Mapping) else item
        if isinstance(data, bytes):
            yield data
        elif isinstance(item, str):
            yield _bytes(item, where, folder)
        else:
            raise RowError(
                f"{where}: field '{field}' holds {type(item).__name__}; wanted paths or data URIs."
            )


def illustrated(messages: Sequence[Message], images: Sequence[bytes], where: str) -> tuple[Message, ...]:
    """The prompt with its images in the user's first message that is text, as parts of its content.

    Raises: RowError when it has marks, and not one for each image.
    """
    place = next((n for n, one in enumerate(messages) if _is_asked(one)), None)
    if place is None:
        raise RowError(
            f"{where}: the prompt has no message of the user whose content is text, for the images."
        )
    parts = _parts(str(messages[place]["content"]), images, where)
    return (*messages[:place], {**messages[place], "content": parts}, *messages[place + 1 :])


def _is_asked(message: Message) -> bool:
    return message["role"] == "user" and isinstance(message["content"], str)


def _parts(text: str, images: Sequence[bytes], where: str) -> list[dict[str, Any]]:
    texts = text.split(MARK)
    if len(texts) == 1:
        texts = [*[""] * len(images), text]
    if len(texts) != len(images) + 1:
        raise RowError(f"{where}: the prompt has {len(texts) - 1} marks {MARK} and {len(images)} images.")
    parts: list[dict[str, Any]] = []
    for place, said in enumerate(texts):
        parts += [{"type": "text", "text": said}] if said else []
        parts += [image_part(bytes_id(images[place]))] if place < len(images) else []
    return parts


def _bytes(item: str, where: str, folder: Path) -> bytes:
    if not item.startswith("data:"):
        file = folder / item
        if not os.path.isfile(file):  # pathlib's own raises for a text as long as an image
            raise MissingFileError(
                f"{where}: there is no image '{shown(str(file))}'; wanted a path relative to the tasks' "
                "file, or 'data:TYPE;base64,...'."
            )
        return file.read_bytes()
    found = _DATA_URI.fullmatch(item)
    if found is None:
        raise RowError(f"{where}: an image is a data URI that is not 'data:TYPE;base64,...'.")
    try:
        return base64.b64decode(found[1], validate=True)
    except binascii.Error as err:
        raise RowError(f"{where}: an image is a data URI whose base64 is broken: {err}") from err
