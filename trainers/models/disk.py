"""Names a full disk behind the errors that the libraries raise when they write to one."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from rft_data.core.errors import DiskFullError, RftError

_NO_ROOM_BYTES = 1 << 20


@contextmanager
def writing(what: str, directory: Path) -> Iterator[None]:
    """Write `what` below the existing folder `directory` inside the block.

    Raises: DiskFullError when a write fails for want of room; any other error as it is.
    """
    try:
        yield
    except RftError:
        raise
    except (OSError, RuntimeError, SafetensorError) as err:
        if not _for_want_of_room(err, directory):
            raise
        raise DiskFullError(
            f"{what} was not written: the disk of '{directory}' is full. What was written before is "
            "complete. Free some space (older runs, old checkpoints), then resume the run."
        ) from err


def _for_want_of_room(err: Exception, directory: Path) -> bool:
    if getattr(err, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(err):
        return True
    # torch.save says only that its stream broke
    return directory.is_dir() and shutil.disk_usage(directory).free < _NO_ROOM_BYTES
