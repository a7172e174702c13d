"""Whether a table's rows are read in the order of their row ids, which is the order they were written in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rft_data.core.errors import IntegrityError

if TYPE_CHECKING:
    import lance


def check_order(location: str, name: str, dataset: lance.LanceDataset) -> None:
    """Check it by the manifest; the newest of two rows is the one that is read last.

    Raises: IntegrityError after a compaction by version 0.8.0 or older put old rows behind newer ones.
    """
    row_ids = np.asarray(dataset.scanner(columns=[], with_row_id=True).to_table().column("_rowid"))
    if (row_ids[1:] < row_ids[:-1]).any():
        raise IntegrityError(
            f"table '{name}' of {location}: rows are not in the order they were written; none is lost. A "
            f"compaction by version 0.8.0 or older did it: run `rft buffer repair {location}`."
        )
