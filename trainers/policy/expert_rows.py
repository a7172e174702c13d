"""Token ids for experts' rows in a leased batch: their messages are tokenised when they are leased.

Rows that have token ids are not changed. How an expert's row is trained on is decided by the loss.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from rft_data.core.protocols import BufferClient, LeasedBatch
from trainers.offline.answers import rendered_row

_READ = ["experience_id", "messages", "prompt_messages", "tools", "metadata"]


def with_ids(batch: LeasedBatch, buffer: BufferClient, tokenizer: PreTrainedTokenizerBase) -> LeasedBatch:
    """The batch with `token_ids`, `action_mask` and `prompt_length` of every row.

    Raises: RowError when a row without ids has no answer in its messages.
    """
    stored = np.asarray(batch.table.column("token_ids").is_valid())
    if stored.all():
        return batch
    without = batch.table.filter(pa.array(~stored))
    rows = buffer.take(without.column("seq").to_pylist()).select(_READ).to_pylist()
    answers = [rendered_row(tokenizer, row) for row in rows]
    for name, values in {
        "token_ids": [answer.ids for answer in answers],
        "action_mask": [answer.mask for answer in answers],
        "prompt_length": [answer.prompt_length for answer in answers],
    }.items():
        at = without.schema.get_field_index(name)
        without = without.set_column(
            at, without.schema.field(at), pa.array(values, without.schema.field(at).type)
        )
    order = np.concatenate([np.flatnonzero(stored), np.flatnonzero(~stored)])
    parts = pa.concat_tables([batch.table.filter(pa.array(stored)), without])
    return replace(batch, table=parts.take(pa.array(np.argsort(order))))
