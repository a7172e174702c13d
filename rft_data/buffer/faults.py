"""Errors of storage: the disk is full, another writer took over, files are damaged."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from rft_data.core.errors import DiskFullError, FencedError, IntegrityError
from rft_data.core.objects import check_credentials, reached

RESERVE_BYTES = 64 << 20
"""Space kept free on the disk, because compaction and checkpoints need some."""


_DAMAGE = re.compile(r"LanceError\(IO\)|Not found: |invalid magic|orrupt|has no columns")
"""Phrases of Lance about files that are empty, cut, garbled or gone."""
_SHORTAGE = re.compile(r"os error (12|23|24|28)\b")
"""No memory, no descriptors, no room: nothing of that is damage."""


def check_room(folder: Path) -> None:
    """Refuse a write while the disk is nearly full.

    Raises: DiskFullError.
    """
    free = shutil.disk_usage(folder).free
    if free < RESERVE_BYTES:
        raise _full(str(folder), f"{free >> 20} MiB are free")


def _full(location: str, found: str) -> DiskFullError:
    return DiskFullError(
        f"the disk of buffer {location} has no room: {found}, {RESERVE_BYTES >> 20} MiB are kept free. "
        "Everything acknowledged is stored and readable. Free some space (older runs, old checkpoints), then "
        "resume or send the rows again: ids are deterministic, nothing is stored twice."
    )


def overtaken(what: str) -> FencedError:
    """The error of an owner that was replaced."""
    return FencedError(
        f"{what}: the buffer was taken over by another writer while this one was away; nothing of this "
        "call is stored. Stop this process: the other one owns the buffer now."
    )


def stored_beside(where: str) -> FencedError:
    """The error of a commit that another writer did not keep from being made."""
    return FencedError(
        f"{where} was written to by another program during this call. The rows of this call are stored, "
        "but experiences among them under wrong numbers. Stop both programs, then run `rft buffer verify`."
    )


@contextmanager
def storage_errors(location: str, name: str) -> Iterator[None]:
    """Turn Lance's errors in a commit into ours."""
    from lance.commit import CommitConflictError

    try:
        yield
    except CommitConflictError as err:
        raise overtaken(f"table '{name}' of buffer {location} has moved on") from err
    except OSError as err:
        if err.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(err):
            raise _full(location, "a write failed with 'no space left on device'") from err
        _raise_unreached(location, name)
    except RuntimeError as err:
        if "No space left" in str(err):
            raise _full(location, "a write failed with 'no space left on device'") from err
        _raise_unreached(location, name)


def _raise_unreached(location: str, name: str) -> NoReturn:
    """Raise the error at hand; on an object store as one that names the table."""
    if "://" not in location:
        raise  # called where an error is handled
    with reached(f"{location}/{name}.lance"):
        raise


@contextmanager
def damage_named(location: str, name: str) -> Iterator[None]:
    """Turn what Lance says of a damaged file into an error that names the remedy.

    Not for object stores, whose errors are more often of the network or of credentials.
    Raises: IntegrityError; StalledError where a store refuses the credentials.
    """
    try:
        yield
    except (OSError, RuntimeError, ValueError) as err:
        said = str(err)
        if "://" in location:
            check_credentials(f"{location}/{name}.lance", err)
        if "://" in location or not _DAMAGE.search(said) or _SHORTAGE.search(said):
            raise
        raise IntegrityError(
            f"table '{name}' of buffer {location} cannot be read ({said.splitlines()[0][:200]}): see what is "
            f"damaged with `rft buffer verify {location}`, and mend it with `rft buffer repair {location}`."
        ) from err


def some_columns(table: Any) -> Any:
    """A table that was opened; a manifest of zeros opens as a table of no columns.

    Raises: ValueError.
    """
    if not table.schema.names:
        raise ValueError("its newest version has no columns")
    return table
