"""A leased table as the padded tensors that TRL's GRPO loss reads.

Prompts are padded on the left and completions on the right. Values go from Arrow's buffers to the
padded arrays through NumPy; no Python object is made per token. It decides no advantage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from rft_data.errors import RowError, TrainingError

Array = npt.NDArray[Any]
Bad = Callable[[Array, str], None]


def collate(table: pa.Table, *, rows: int, pad_id: int) -> dict[str, torch.Tensor]:
    """Pad n experiences to R = `rows` rows, P prompt columns and C completion columns.

    Args:
        table: EXPERIENCES columns joined with `advantage` (one value per row, or one per token of
            `token_ids`).
        rows: rows of the result; those beyond the table's hold one prompt token and no completion.
        pad_id: token id written where the masks are 0.
    Returns: `prompt_ids`, `prompt_mask` (R, P), `completion_ids`, `completion_mask`, `tool_mask`
        (1 = the policy sampled it; padding is 1) (R, C), `advantages` (R,) or (R, C),
        `old_per_token_logps`, `sampling_per_token_logps` (R, C), nats, and the 0-dim
        `num_items_in_batch`, the number of sampled tokens.
    Raises: RowError when a row lacks what training needs; TrainingError when the number of rows
        does not fit.
    """
    n = table.num_rows
    if not 0 < n <= rows:
        raise TrainingError(
            f"the lease has {n} rows, the trainer takes 1 to {rows} a step; lease fewer groups."
        )
    tokens, lengths = _ragged(table, "token_ids")
    prompts = table.column("prompt_length").to_numpy()
    _require(table, (prompts >= 1) & (prompts <= lengths), "needs 1 <= prompt_length <= number of token_ids")
    in_prompt = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths) < np.repeat(
        prompts, lengths
    )
    width = max(1, int(np.max(lengths - prompts)))
    prompt_mask = np.zeros((rows, int(prompts.max())), dtype=bool)
    prompt_mask[:n] = np.arange(prompt_mask.shape[1]) >= prompt_mask.shape[1] - prompts[:, None]
    completion_mask = np.zeros((rows, width), dtype=bool)
    completion_mask[:n] = np.arange(width) < (lengths - prompts)[:, None]

    prompt_ids = _fill(prompt_mask, tokens[in_prompt], pad_id, np.int64)
    # A row that attends to nothing would make NaN in the attention's softmax.
    prompt_mask[n:, -1] = True

    def per_completion_token(name: str, fill: float, dtype: type) -> Array:
        values, sizes = _ragged(table, name)
        _require(table, sizes == lengths, f"needs as many {name} as token_ids")
        return _fill(completion_mask, values[~in_prompt], fill, dtype)

    tool_mask = per_completion_token("action_mask", 1, np.int64)
    logprobs = torch.from_numpy(per_completion_token("logprobs", 0.0, np.float32))
    return {
        "prompt_ids": torch.from_numpy(prompt_ids),
        "prompt_mask": torch.from_numpy(prompt_mask.astype(np.int64)),
        "completion_ids": torch.from_numpy(_fill(completion_mask, tokens[~in_prompt], pad_id, np.int64)),
        "completion_mask": torch.from_numpy(completion_mask.astype(np.int64)),
        "tool_mask": torch.from_numpy(tool_mask),
        "advantages": torch.from_numpy(_advantages(table, lengths, in_prompt, completion_mask)),
        "old_per_token_logps": logprobs,
        "sampling_per_token_logps": logprobs.clone(),
        "num_items_in_batch": torch.tensor(int((tool_mask * completion_mask).sum())),
    }


def _advantages(table: pa.Table, lengths: Array, in_prompt: Array, completion_mask: Array) -> Array:
    """(R,) when every row has one advantage, else (R, C); 0 on padding."""
    values, sizes = _ragged(table, "advantage")
    _require(table, (sizes == 1) | (sizes == lengths), "needs one advantage, or one for each of token_ids")
    if np.all(sizes == 1):
        out: Array = np.zeros(len(completion_mask), dtype=np.float32)
        out[: len(values)] = values
        return out
    per_token = np.repeat(values, np.repeat(np.where(sizes == 1, lengths, 1), sizes))
    return _fill(completion_mask, per_token[~in_prompt], 0.0, np.float32)


def _fill(mask: Array, values: Array, fill: float, dtype: type) -> Array:
    """`values` in row order where `mask` is set, `fill` elsewhere."""
    out: Array = np.full(mask.shape, fill, dtype=dtype)
    out[mask] = values
    return out


def _ragged(table: pa.Table, name: str) -> tuple[Array, Array]:
    """The flat values of a list column and the length of each row's list."""
    column = table.column(name)
    _require(table, np.asarray(column.is_valid()), f"has no {name}; it cannot be trained on by this trainer")
    lists = column.combine_chunks()
    return lists.flatten().to_numpy(zero_copy_only=False), lists.value_lengths().to_numpy()


def _require(table: pa.Table, fine: Array, wanted: str) -> None:
    """Raise a RowError naming the first experience that is not fine."""
    if not np.all(fine):
        row = int(np.argmin(fine))
        raise RowError(
            f"experience row {table.column('seq')[row].as_py()} {wanted}; "
            "filter such rows out with an operator before they are leased."
        )
