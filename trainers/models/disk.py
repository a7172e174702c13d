"""Recognises a full disk behind the errors that libraries raise when a write fails."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from rft_data.core.errors import DiskFullError, RftError

_FULL_BELOW_BYTES = 1 << 20


@contextmanager
def writing(what: str, directory: Path) -> Iterator[None]:
    """Around a block that writes `what` into the existing folder `directory`.

    Raises: DiskFullError when a write failed because the disk is full; any other error unchanged.
    """
    try:
        yield
    except RftError:
        raise
    except (OSError, RuntimeError, SafetensorError) as err:
        if not _disk_is_full(err, directory):
            raise
        raise DiskFullError(
            f"{what} was not written: the disk of '{directory}' is full. What was written before is "
            "complete. Free some space (older runs, old checkpoints), then resume the run."
        ) from err


def _disk_is_full(err: Exception, directory: Path) -> bool:
    if getattr(err, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(err):
        return True
    # the error of torch.save tells only that its stream broke
    return directory.is_dir() and shutil.disk_usage(directory).free < _FULL_BELOW_BYTES
