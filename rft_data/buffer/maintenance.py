"""Keeps tables fast over any number of commits: merges small fragments, removes old versions and orphans.

Fragments are merged in tiers, so that a row is copied only a few times.
"""

from __future__ import annotations

import ctypes
import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from rft_data.buffer.growth import Growth
from rft_data.buffer.store import Store
from rft_data.core.errors import FencedError
from rft_data.core.failpoints import failpoint

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.optimize import CompactionTask

log = logging.getLogger(__name__)

COMPACT_EVERY = 32
"""Commits to a table between two checks of its fragments."""
COMPACT_ROWS = 65_536
"""Rows added between two checks, if that comes first."""
TIERS = (2_048, 32_768, 262_144)
"""Target rows per fragment of each merge; a random read costs more, the more fragments it reads."""
FULL_BYTES = 512 << 20
"""A fragment of this size is not merged, however few rows it has."""
_CROWD = 8
"""Up to so many fragments of one tier are not merged."""
KEEP_VERSIONS_S = 600.0
"""A reader may use a version this long before its files are removed."""
CLEAN_EVERY = 512
"""Commits to a table between two removals of old versions: each reads all manifests, 0.4 ms of CPU each."""
NEWEST_VERSIONS = 256
"""Newest versions whose manifests are kept for readers that are opening one, and for repairs."""
_READ_BATCH_BYTES = 16 << 20


def maintain(store: Store, name: str) -> None:
    """Compact a table if there were enough commits since the last time.

    The rows are stored already, so a compaction that fails is logged and tried again later.
    """
    since = store.growth[name]
    if since.commits >= COMPACT_EVERY or since.rows >= COMPACT_ROWS:
        try:
            compact(store, name)
        except FencedError:
            raise
        except (OSError, RuntimeError) as err:
            since.reset()
            store.forget(name)
            log.warning(
                "table '%s' of %s was not compacted; it is tried again later: %s", name, store.location, err
            )


def compact(store: Store, name: str, *, crowd: int = _CROWD) -> dict[str, int]:
    """Merge a table's small fragments and remove versions that no reader may use any more.

    Returns: fragments before and after.
    """
    store.check_writable()
    with store.locked(name), store.committing(name):
        store.forget_head(name)  # a head kept from before a failed write would be outdated
        dataset = store.head(name)
        before = len(dataset.get_fragments())
        for lowest, target in zip((0, *TIERS), TIERS, strict=False):
            _merge(dataset, lowest, target, crowd)
        store.sync(name)  # before the replaced files are removed
        grown = store.growth[name]
        if crowd == 1 or _due(grown):
            _clean(dataset, grown)
        _release_memory()
        grown.reset()
        store.forget_head(name)
        return {"fragments_before": before, "fragments_after": len(store.head(name).get_fragments())}


def _release_memory() -> None:
    """Give freed memory back to the system: that of Arrow's pool and, with glibc, of malloc's arenas.

    Each of Lance's threads has an arena; without this their free memory adds up to 100 MB (measured).
    """
    pa.default_memory_pool().release_unused()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _due(grown: Growth) -> bool:
    crowded = len(grown.superseded) >= NEWEST_VERSIONS + CLEAN_EVERY
    return crowded or time.monotonic() - grown.cleaned_at >= KEEP_VERSIONS_S


def _clean(dataset: LanceDataset, grown: Growth) -> None:
    """Remove versions that no reader may use any more, and manifests whose files a later one names too.

    Removing such a manifest removes no data, so a reader that has opened its version is not affected.
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
    """Remove files that no version names, left behind by a killed or failed write.

    Only for the owner, and only while no write is running.
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


def _merge(dataset: LanceDataset, lowest: int, target: int, crowd: int) -> None:
    """Merge fragments below `target` rows if there are more than `crowd` of them in this tier.

    To the tier belong those of `lowest` rows and more, and smaller ones in front of them.
    """
    from lance.optimize import Compaction, CompactionOptions

    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    full = [f.id for f in fragments if sum(file.file_size_bytes or 0 for file in f.files) >= FULL_BYTES]
    small = [f.physical_rows for f in fragments if f.physical_rows < target and f.id not in full]
    while small and small[-1] < lowest:
        small.pop()
    if len(small) <= crowd:
        return
    options = CompactionOptions(
        target_rows_per_fragment=target,
        max_bytes_per_file=FULL_BYTES,
        excluded_fragment_ids=full,
        compaction_mode="try_binary_copy",
        num_threads=1,
        binary_copy_read_batch_bytes=_READ_BATCH_BYTES,
    )
    tasks = _in_order(dataset, Compaction.plan(dataset, options).tasks)
    if not tasks:
        return
    failpoint("compact.merge")
    Compaction.commit(dataset, [task.execute(dataset) for task in tasks])
    failpoint("compact.merged")


def _in_order(dataset: LanceDataset, tasks: list[CompactionTask]) -> list[CompactionTask]:
    """The merges after which rows are still read in the order they were written.

    Fragments are read in the order of their ids, and merged ones get new ids: so nothing that stays as it
    is may follow what is merged. A fragment larger than the target stays, and one alone on its side of the
    end of a search index; the fragments before it are merged in another tier, or with a later commit.
    """
    merged = {fragment.id for task in tasks for fragment in task.fragments}
    stays = [fragment.fragment_id for fragment in dataset.get_fragments()]
    last = max((number for number in stays if number not in merged), default=-1)
    return [task for task in tasks if min(fragment.id for fragment in task.fragments) > last]
