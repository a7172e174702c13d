"""Keeping tables quick over any number of commits: merge small fragments, drop old versions and orphans.

Fragments are merged in tiers, so a row is copied a few times in its life and not at every turn.
"""

from __future__ import annotations

import ctypes
import logging
import time
from datetime import timedelta
from typing import Any

import pyarrow as pa

from rft_data.buffer.faults import storage_errors
from rft_data.buffer.growth import Growth
from rft_data.buffer.store import Store
from rft_data.core.errors import FencedError
from rft_data.core.failpoints import failpoint

log = logging.getLogger(__name__)

COMPACT_EVERY = 32
"""Commits to a table between two looks at its fragments."""
COMPACT_ROWS = 65_536
"""Rows added between two looks, if that comes first."""
TIERS = (2_048, 32_768, 262_144)
"""Rows per fragment that the merges aim at: a random read costs by the fragments it touches."""
FULL_BYTES = 512 << 20
"""A fragment of this size is left alone, however few rows it has."""
_CROWD = 8
"""Fragments of one tier that are left alone."""
KEEP_VERSIONS_S = 600.0
"""A reader may hold a version this long before its files can go."""
CLEAN_EVERY = 512
"""Commits to a table between two removals of old versions: each reads all manifests, 0.4 ms CPU apiece."""
NEWEST_VERSIONS = 256
"""Newest versions whose manifests stay: a reader may just be opening one, a repair may fall back on one."""
_READ_BATCH_BYTES = 16 << 20


def maintain(store: Store, name: str) -> None:
    """Compact a table when enough commits have gone by since the last time.

    What was to be stored is stored already, so a compaction that fails is logged and tried again later.
    """
    since = store.growth[name]
    if since.commits >= COMPACT_EVERY or since.rows >= COMPACT_ROWS:
        try:
            compact(store, name)
        except FencedError:
            raise
        except (OSError, RuntimeError) as err:
            since.looked_at()
            store.forget(name)
            log.warning("table '%s' of %s was not compacted and will be later: %s", name, store.location, err)


def compact(store: Store, name: str, *, crowd: int = _CROWD) -> dict[str, int]:
    """Merge a table's small fragments and drop versions nobody may hold any more.

    Returns: fragments before and after.
    """
    store.check_writable()
    with store.locked(name), storage_errors(store.location, name):
        store.forget_head(name)  # one that a failed write left behind would put its rows elsewhere
        dataset = store.head(name)
        before = len(dataset.get_fragments())
        for lowest, target in zip((0, *TIERS), TIERS, strict=False):
            _merge(dataset, lowest, target, crowd)
        store.sync(name)  # before the files that the merged ones replace may go
        grown = store.growth[name]
        if crowd == 1 or _due(grown):
            _clean(dataset, grown)
        _release_memory()
        grown.looked_at()
        store.forget_head(name)
        return {"fragments_before": before, "fragments_after": len(store.head(name).get_fragments())}


def _due(grown: Growth) -> bool:
    crowded = len(grown.superseded) >= NEWEST_VERSIONS + CLEAN_EVERY
    return crowded or time.monotonic() - grown.cleaned_at >= KEEP_VERSIONS_S


def _clean(dataset: Any, grown: Growth) -> None:
    """Remove versions nobody may hold any more, and manifests whose files a later one names as well.

    The latter touch no data, so a reader that has opened such a version reads on.
    """
    spare = [version for version in grown.superseded if version <= dataset.version - NEWEST_VERSIONS]
    if spare:
        dataset.cleanup_old_versions(versions=spare, error_if_tagged_old_versions=False)
    dataset.cleanup_old_versions(
        older_than=timedelta(seconds=KEEP_VERSIONS_S), error_if_tagged_old_versions=False
    )
    failpoint("compact.cleaned")
    del grown.superseded[: len(spare)]
    grown.cleaned_at = time.monotonic()


def remove_orphans(store: Store, name: str) -> int:
    """Remove files that no version names: what a killed or failed write left behind.

    Only for the owner, and only while no write is on its way.
    Returns: bytes removed.
    """
    store.check_writable()
    with store.locked(name):
        stats = store.head(name).cleanup_old_versions(
            older_than=timedelta(seconds=KEEP_VERSIONS_S),
            delete_unverified=True,
            error_if_tagged_old_versions=False,
        )
        return int(stats.bytes_removed)


def _merge(dataset: Any, lowest: int, target: int, crowd: int) -> None:
    """Merge fragments below `target` rows when there is a crowd of them in this tier."""
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    full = [f.id for f in fragments if sum(file.file_size_bytes or 0 for file in f.files) >= FULL_BYTES]
    if sum(lowest <= f.physical_rows < target and f.id not in full for f in fragments) <= crowd:
        return
    failpoint("compact.merge")
    dataset.optimize.compact_files(
        target_rows_per_fragment=target,
        max_bytes_per_file=FULL_BYTES,
        excluded_fragment_ids=full,
        compaction_mode="try_binary_copy",
        num_threads=1,
        binary_copy_read_batch_bytes=_READ_BATCH_BYTES,
    )
    failpoint("compact.merged")


def _release_memory() -> None:
    """Give freed memory back to the system: Arrow's pool and, with glibc, malloc's arenas.

    Lance's threads have an arena each; without this the pieces they leave add up to 100 MB (measured).
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
