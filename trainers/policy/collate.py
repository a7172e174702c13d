"""A leased table as the padded tensors that TRL's GRPO loss reads.

Prompts are padded on the left and completions on the right. Values go from Arrow's buffers to the
padded arrays through NumPy; no Python object is made per token. Advantages are taken as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from rft_data.core.errors import RowError, TrainingError
from trainers.policy.rollouts import rewards_of_rollouts, rollout_numbers, shares_of_rollouts

Array = npt.NDArray[Any]

NO_VERSION = -1
"""`version_min` of rows that no policy of ours sampled, and of padding."""


def collate(table: pa.Table, *, rows: int, pad_id: int, experts: bool = False) -> dict[str, torch.Tensor]:
    """Pad n experiences to R = `rows` rows, P prompt columns and C completion columns.

    Args:
        table: EXPERIENCES columns joined with `advantage` (one value per row, or one per token of
            `token_ids`) and, where an operator masked rows, `masked`.
        rows: rows of the result; rows beyond the table's have one prompt token and no completion.
        pad_id: token id written where the masks are 0.
        experts: whether rows without logprobs are taken.
    Returns: `prompt_ids`, `prompt_mask` (R, P), `completion_ids`, `completion_mask`, `tool_mask`
        (1 = the policy sampled it; padding is 1) (R, C), `advantages` (R,) or (R, C),
        `old_per_token_logps`, `sampling_per_token_logps` (R, C), nats, `version_min`, `groups` and `rollouts`
        (numbers, -1 on padding), `rewards` (effective, of the row's rollout, NaN where it has none),
        `is_expert` (R,), and 0-dim `num_items_in_batch`, the sampled tokens; and what
        `shares_of_rollouts` returns.
        `completion_mask` is 0 in a masked row, as with TRL's mask_truncated_completions: the row counts as a
        row, its tokens do not. A row without logprobs is an expert's.
    Raises: RowError when a row lacks what training needs; TrainingError when the number of rows
        does not fit.
    """
    grid = _Grid.from_table(table, rows, experts)
    tool_mask = grid.completions("action_mask", 1, np.int64)
    logprobs = grid.logprobs()
    completion_mask = grid.attended_completion()
    rollouts = rollout_numbers(table)
    arrays = {
        "prompt_ids": grid.prompts(pad_id),
        "prompt_mask": grid.attended_prompt().astype(np.int64),
        "completion_ids": grid.completions("token_ids", pad_id, np.int64),
        "completion_mask": completion_mask.astype(np.int64),
        "tool_mask": tool_mask,
        "advantages": grid.advantages(),
        "old_per_token_logps": logprobs,
        "sampling_per_token_logps": logprobs.copy(),
        "version_min": grid.versions(),
        "groups": grid.groups(),
        "rollouts": grid.per_row(rollouts, -1, np.int64),
        "rewards": grid.per_row(rewards_of_rollouts(table, rollouts), np.nan, np.float32),
        "is_expert": grid.is_expert(),
        "num_items_in_batch": np.array((tool_mask * completion_mask).sum()),
        **shares_of_rollouts(rollouts, (tool_mask * completion_mask).sum(axis=1)),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def trained(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, C) int64, 1 where a token of a collated batch enters a loss."""
    return batch["completion_mask"] * batch["tool_mask"]


@dataclass(frozen=True, slots=True)
class _Grid:
    """The table, and the cells of the padded arrays that its tokens fill, in row order."""

    table: pa.Table
    lengths: Array
    """(n,) tokens of each row."""
    in_prompt: Array
    """(all tokens,) whether a token belongs to its row's prompt."""
    prompt_mask: Array
    """(R, P), true where a prompt token is written: at the right end."""
    completion_mask: Array
    """(R, C), true where a completion token is written: at the left end."""
    experts: bool
    """Whether rows without logprobs are taken."""

    @classmethod
    def from_table(cls, table: pa.Table, rows: int, experts: bool) -> _Grid:
        n = table.num_rows
        if not 0 < n <= rows:
            raise TrainingError(
                f"the lease has {n} rows, the trainer takes 1 to {rows} a step; lease fewer groups."
            )
        _, lengths = _ragged(table, "token_ids")
        prompts = table.column("prompt_length").to_numpy()
        _require(
            table, (prompts >= 1) & (prompts <= lengths), "needs 1 <= prompt_length <= number of token_ids"
        )
        starts = np.cumsum(lengths) - lengths
        in_prompt = np.arange(int(lengths.sum())) < np.repeat(starts + prompts, lengths)
        width, longest = max(1, int(np.max(lengths - prompts))), int(prompts.max())
        prompt_mask = np.zeros((rows, longest), dtype=bool)
        prompt_mask[:n] = np.arange(longest) >= longest - prompts[:, None]
        completion_mask = np.zeros((rows, width), dtype=bool)
        completion_mask[:n] = np.arange(width) < (lengths - prompts)[:, None]
        return cls(table, lengths, in_prompt, prompt_mask, completion_mask, experts)

    def prompts(self, pad_id: int) -> Array:
        tokens, _ = _ragged(self.table, "token_ids")
        return _fill(self.prompt_mask, tokens[self.in_prompt], pad_id, np.int64)

    def attended_prompt(self) -> Array:
        """The prompt mask with one token in each padding row."""
        mask = self.prompt_mask.copy()
        # A row that attends to no token gives NaN in the attention's softmax.
        mask[self.table.num_rows :, -1] = True
        return mask

    def attended_completion(self) -> Array:
        """The completion mask without the rows that an operator masked."""
        mask = self.completion_mask.copy()
        if "masked" in self.table.column_names:
            masked = pc.fill_null(self.table.column("masked"), False)
            mask[: self.table.num_rows][masked.to_numpy()] = False
        return mask

    def completions(self, name: str, fill: float, dtype: type) -> Array:
        """A per-token column's values of the completions."""
        values, sizes = _ragged(self.table, name)
        _require(self.table, sizes == self.lengths, f"needs as many {name} as token_ids")
        return _fill(self.completion_mask, values[~self.in_prompt], fill, dtype)

    def logprobs(self) -> Array:
        """(R, C), 0 for experts."""
        column = self.table.column("logprobs")
        given = np.asarray(column.is_valid())
        # Only an expert's row may lack them. Without this check a sampled row would be imitated like one.
        expert = ~np.asarray(self.table.column("version_min").is_valid()) & self.experts
        _require(self.table, given | expert, "has no logprobs; it cannot be trained on by this trainer")
        sizes = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
        _require(self.table, (sizes == self.lengths) | ~given, "needs as many logprobs as token_ids")
        values = np.zeros(int(self.lengths.sum()), np.float32)
        values[np.repeat(given, self.lengths)] = pc.list_flatten(column).to_numpy()
        return _fill(self.completion_mask, values[~self.in_prompt], 0.0, np.float32)

    def is_expert(self) -> Array:
        """(R,) whether a row has no logprobs."""
        return self.per_row(~np.asarray(self.table.column("logprobs").is_valid()), False, np.bool_)

    def groups(self) -> Array:
        """(R,) a number for each group, -1 on padding."""
        codes = self.table.column("group_id").combine_chunks().dictionary_encode().indices
        return self.per_row(codes.to_numpy(), -1, np.int64)

    def advantages(self) -> Array:
        """(R,) when every row has one advantage, else (R, C); 0 on padding."""
        values, sizes = _ragged(self.table, "advantage")
        fine = (sizes == 1) | (sizes == self.lengths)
        _require(self.table, fine, "needs one advantage, or one for each of token_ids")
        if np.all(sizes == 1):
            return self.per_row(values, 0.0, np.float32)
        per_token = np.repeat(values, np.repeat(np.where(sizes == 1, self.lengths, 1), sizes))
        return _fill(self.completion_mask, per_token[~self.in_prompt], 0.0, np.float32)

    def versions(self) -> Array:
        """(R,) lowest policy version of each row's tokens."""
        column = self.table.column("version_min")
        return self.per_row(pc.fill_null(column, NO_VERSION).to_numpy(), NO_VERSION, np.int64)

    def per_row(self, values: Array, fill: float, dtype: type) -> Array:
        """(R,) the values, `fill` on padding."""
        out: Array = np.full(len(self.completion_mask), fill, dtype=dtype)
        out[: len(values)] = values
        return out


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
