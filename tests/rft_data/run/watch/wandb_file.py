"""What W&B wrote without a network."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any


def records_of_wandb(file: Path) -> list[Any]:
    """Every record of an offline W&B run: LevelDB's log format after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, found, part = file.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # a header never crosses the end of a block
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last of several parts
            found.append(Record.FromString(part))
            part = b""
    return found
