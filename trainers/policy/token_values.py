"""Values of single tokens in the loss's forward pass, kept for a few rows of each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rft_data.core.rows import TokenValues

MOST_ROWS, MOST_TOKENS = 16, 8192
"""Bounds of a step: of rank 0's rows the first of the lease, as far as their tokens go."""
ROW = "row"
"""(R,) int64 tensor of a batch: a row's place in its lease; padding has larger numbers."""
_DIGITS = 5


class KeptTokens:
    """Logprobs and entropies of the policy at a step's start, of rows that this rank trains on."""

    def __init__(self) -> None:
        self._kept: dict[int, torch.Tensor] = {}

    def add(
        self, inputs: dict[str, torch.Tensor], logprobs: torch.Tensor, entropies: torch.Tensor | None
    ) -> None:
        """Add a micro-batch: (B, C) each, nats, as its loss reads them. Masked rows have no tokens here."""
        found = [logprobs] if entropies is None else [logprobs, entropies]
        values = torch.stack([part.detach().float() for part in found], dim=1).cpu()
        lengths = inputs["completion_mask"].sum(1).tolist()
        for row, length, of_row in zip(inputs[ROW].tolist(), lengths, values, strict=True):
            if length:
                self._kept[row] = of_row[:, :length]

    def take(self, seqs: Sequence[int]) -> tuple[TokenValues, ...]:
        """The values of a few rows of the step whose lease has these; the next `add` begins another step."""
        kept, self._kept = self._kept, {}
        made, tokens = [], 0
        for row, values in sorted(kept.items())[:MOST_ROWS]:
            tokens += values.shape[1]
            if tokens > MOST_TOKENS:
                break
            made.append(TokenValues(seqs[row], *values.double().numpy().round(_DIGITS).tolist()))
        return tuple(made)
