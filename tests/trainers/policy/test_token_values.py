"""The values that are kept of single tokens are those of the model at the step's start, row by row."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM

from rft_data.core.protocols import LeasedBatch
from trainers.policy import token_values
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.plan import GrpoPlan, Limits

TEMPERATURE = 0.7


def report(model_path: Path, out: Path, batch: LeasedBatch, **plan: Any) -> Any:
    options = {"learning_rate": 1e-3, "gradient_accumulation_steps": 2, "temperature": TEMPERATURE}
    with closing(
        GrpoTrainer(GrpoPlan(model_path, out, 1, 8, options, 0, limits=Limits(threads=1), **plan))
    ) as grpo:
        return grpo.train_on(batch)


def plain(model: torch.nn.Module, row: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs and entropies of a row's completion, alone in its batch, in float64."""
    ids, start = torch.tensor([row["token_ids"]]), row["prompt_length"]
    logprobs = torch.log_softmax(model(ids).logits[0, start - 1 : -1] / TEMPERATURE, -1)
    chosen = logprobs.gather(1, ids[0, start:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [{}, {"loss": {"use": "ppo_clip"}}], ids=["trl", "own"])
def test_kept_values_are_those_of_the_model_before_the_step(
    model_path: Path,
    tmp_path: Path,
    rows_table: Callable[..., pa.Table],
    leased: Callable[[pa.Table, int], LeasedBatch],
    objective: dict[str, Any],
) -> None:
    table = rows_table(0, 8)
    table = table.append_column("masked", pa.array([row == 1 for row in range(8)]))
    kept = report(model_path, tmp_path, leased(table, 0), objective=objective).tokens
    rows = table.to_pylist()
    assert [one.seq for one in kept] == [row["seq"] for row in rows if not row["masked"]]
    exact = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64).eval()
    for row, one in zip((row for row in rows if not row["masked"]), kept, strict=True):
        logprobs, entropies = plain(exact, row)
        assert one.logprobs == pytest.approx(logprobs.tolist(), abs=2e-5)
        assert one.entropies == pytest.approx(entropies.tolist(), abs=2e-5)


def test_a_step_keeps_few_rows_and_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def added() -> token_values.KeptTokens:
        kept = token_values.KeptTokens()
        for rows in ((3, 1), (0, 4)):
            mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
            values = torch.tensor(rows).float().unsqueeze(1).expand(2, 3)
            kept.add({"row": torch.tensor(rows), "completion_mask": mask}, values, None)
        return kept

    seqs = [10, 11, 12, 13]
    found = added().take([*seqs, 14])
    assert [(one.seq, list(one.logprobs)) for one in found] == [
        (10, [0.0] * 3),
        (11, [1.0]),
        (13, [3.0] * 3),
        (14, [4.0]),
    ]
    assert not any(one.entropies for one in found)
    monkeypatch.setattr(token_values, "MOST_ROWS", 3)
    assert [one.seq for one in added().take(seqs)] == [10, 11, 13]
    monkeypatch.setattr(token_values, "MOST_TOKENS", 6)
    kept = added()
    assert [one.seq for one in kept.take(seqs)] == [10, 11]
    assert kept.take(seqs) == ()
