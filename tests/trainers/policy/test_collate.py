"""Leased rows as padded tensors, against a row-by-row Python reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rft_data.core.errors import RowError, TrainingError
from trainers.policy.collate import collate

Rows = Callable[..., pa.Table]
Replace = Callable[[pa.Table, str, Sequence[Any]], pa.Table]
PAD = 0


def unpadded(batch: dict[str, torch.Tensor], row: int, name: str) -> list[float]:
    side = "prompt_mask" if name == "prompt_ids" else "completion_mask"
    return batch[name][row][batch[side][row] == 1].tolist()


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("rows", [6, 9])
def test_collate_keeps_every_token_of_every_row(per_token: bool, rows: int, rows_table: Rows) -> None:
    table = rows_table(0, 6, per_token=per_token, empty_rows=1)
    batch = collate(table, rows=rows, pad_id=PAD)
    for i, row in enumerate(table.to_pylist()):
        cut = row["prompt_length"]
        assert unpadded(batch, i, "prompt_ids") == row["token_ids"][:cut]
        assert unpadded(batch, i, "completion_ids") == row["token_ids"][cut:]
        assert unpadded(batch, i, "tool_mask") == row["action_mask"][cut:]
        assert unpadded(batch, i, "old_per_token_logps") == row["logprobs"][cut:]
        assert unpadded(batch, i, "sampling_per_token_logps") == row["logprobs"][cut:]
        length = len(row["token_ids"])
        advantages = row["advantage"] if len(row["advantage"]) > 1 else row["advantage"] * length
        if per_token:
            assert unpadded(batch, i, "advantages") == advantages[cut:]
        else:
            assert batch["advantages"][i].item() == advantages[0]
    assert batch["num_items_in_batch"].item() == sum(
        sum(row["action_mask"][row["prompt_length"] :]) for row in table.to_pylist()
    )


def test_collate_pads_prompts_left_and_completions_right(rows_table: Rows) -> None:
    batch = collate(rows_table(1, 8), rows=8, pad_id=PAD)
    prompt, completion = batch["prompt_mask"], batch["completion_mask"]
    assert torch.equal(prompt, prompt.sort(dim=1).values)
    assert torch.equal(completion, completion.sort(dim=1, descending=True).values)
    assert prompt.sum(1).max() == prompt.shape[1]
    assert completion.sum(1).max() == completion.shape[1]
    outside = batch["completion_mask"] == 0
    assert batch["tool_mask"][outside].eq(1).all()
    assert batch["completion_ids"][outside].eq(PAD).all()
    assert batch["old_per_token_logps"][outside].eq(0).all()


def test_collate_padding_rows_attend_to_one_token_and_train_none(rows_table: Rows) -> None:
    batch = collate(rows_table(1, 5), rows=8, pad_id=PAD)
    assert batch["prompt_mask"][5:].sum(1).tolist() == [1, 1, 1]
    assert batch["completion_mask"][5:].sum().item() == 0
    assert batch["advantages"][5:].eq(0).all()


def test_collate_only_empty_completions_gives_one_masked_integer_column(rows_table: Rows) -> None:
    batch = collate(rows_table(1, 2, empty_rows=2), rows=2, pad_id=PAD)
    assert batch["completion_ids"].shape == (2, 1)
    assert batch["completion_ids"].dtype == torch.long
    assert batch["completion_mask"].sum().item() == 0
    assert batch["num_items_in_batch"].item() == 0


@pytest.mark.parametrize("cuts", [[(2, 5)], [(2, 3), (5, 2)]], ids=["slice", "chunks"])
def test_collate_reads_slices_and_chunks_of_a_larger_table(
    rows_table: Rows, cuts: list[tuple[int, int]]
) -> None:
    table = rows_table(2, 8, per_token=True)
    cut = pa.concat_tables([table.slice(*at) for at in cuts])
    want = collate(pa.Table.from_pylist(table.slice(2, 5).to_pylist(), table.schema), rows=5, pad_id=PAD)
    got = collate(cut, rows=5, pad_id=PAD)
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("token_ids", [[1, 2], None], "row 1 has no token_ids"),
        ("logprobs", [[0.0] * 40, None], "row 1 has no logprobs"),
        ("advantage", [None, [1.0]], "row 0 has no advantage"),
        ("advantage", [[1.0], [1.0, 2.0]], "row 1 needs one advantage"),
        ("prompt_length", [1, 0], "row 1 needs 1 <= prompt_length"),
        ("prompt_length", [1, 999], "row 1 needs 1 <= prompt_length"),
    ],
)
def test_collate_names_the_row_that_cannot_be_trained_on(
    column: str, values: list[Any], message: str, rows_table: Rows, replace_column: Replace
) -> None:
    table = rows_table(3, 2)
    if column == "logprobs":
        values = [[0.0] * len(table.column("token_ids")[0]), None]
    with pytest.raises(RowError, match=message):
        collate(replace_column(table, column, values), rows=2, pad_id=PAD)


@pytest.mark.parametrize("column", ["action_mask", "logprobs"])
def test_collate_refuses_lists_of_another_length(
    column: str, rows_table: Rows, replace_column: Replace
) -> None:
    table = rows_table(3, 2)
    with pytest.raises(RowError, match=f"row 0 needs as many {column} as token_ids"):
        collate(replace_column(table, column, [[0], [0]]), rows=2, pad_id=PAD)


@pytest.mark.parametrize("n", [0, 3])
def test_collate_refuses_a_lease_that_does_not_fit(n: int, rows_table: Rows) -> None:
    with pytest.raises(TrainingError, match=f"the lease has {n} rows, the trainer takes 1 to 2"):
        collate(rows_table(3, 3).slice(0, n), rows=2, pad_id=PAD)


def test_collate_masked_rows_attend_to_no_completion_and_count_no_token(rows_table: Rows) -> None:
    table = rows_table(1, 4)
    masked = table.append_column("masked", pa.array([True, None, False, True]))
    batch, plain = (collate(rows, rows=6, pad_id=PAD) for rows in (masked, table))
    assert batch["completion_mask"][[0, 3]].sum() == 0
    assert torch.equal(batch["completion_mask"][1:3], plain["completion_mask"][1:3])
    sampled = (plain["completion_mask"] * plain["tool_mask"])[1:3].sum()
    assert batch["num_items_in_batch"] == sampled
    for name in set(plain) - {"completion_mask", "num_items_in_batch"}:
        assert np.array_equal(batch[name], plain[name], equal_nan=True)
