"""Experts' rows in a leased batch: their messages become token ids, once, when they are leased.

Rows that have ids are left as they are. What an expert's row is worth is the loss's business.
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
    told = batch.table.filter(pa.array(~stored))
    rows = buffer.take(told.column("seq").to_pylist()).select(_READ).to_pylist()
    answers = [rendered_row(tokenizer, row) for row in rows]
    for name, values in {
        "token_ids": [answer.ids for answer in answers],
        "action_mask": [answer.mask for answer in answers],
        "prompt_length": [answer.prompt_length for answer in answers],
    }.items():
        at = told.schema.get_field_index(name)
        told = told.set_column(at, told.schema.field(at), pa.array(values, told.schema.field(at).type))
    order = np.concatenate([np.flatnonzero(stored), np.flatnonzero(~stored)])
    parts = pa.concat_tables([batch.table.filter(pa.array(stored)), told])
    return replace(batch, table=parts.take(pa.array(np.argsort(order))))
