"""Decoding with a transformers model: requests, left-padded batches of them, and sampling a token.

There is no continuous batching and no prefix sharing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from explorers.engines.stopping import StopTexts
from explorers.engines.swap import Segments
from rft_data.core.words import NOT_SAMPLED, FinishReason

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel


@dataclass(slots=True)
class Request:
    """One prompt in flight; each decoded token is appended to the lists."""

    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    segments: Segments
    future: asyncio.Future[None]
    min_tokens: int = 0
    stop: StopTexts | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | Literal[""] = NOT_SAMPLED

    def take(self, token_id: int, logprob: float, end_ids: frozenset[int]) -> None:
        """Append one sampled token; finish the request if it was the last one."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        if token_id in end_ids or self._completes_stop():
            self.finish_reason = FinishReason.STOP
        elif len(self.token_ids) >= self.max_tokens:
            self.finish_reason = FinishReason.LENGTH
        if self.finish_reason and not self.future.done():
            self.future.set_result(None)

    @property
    def may_end(self) -> bool:
        """Whether the next token may be an end token."""
        return len(self.token_ids) >= self.min_tokens

    def _completes_stop(self) -> bool:
        late = len(self.token_ids) > self.min_tokens
        return late and self.stop is not None and self.stop.completed(self.token_ids)


@dataclass(slots=True)
class Batch:
    """B requests that are decoded together; T positions are in the next forward pass."""

    requests: list[Request]
    ids_BT: torch.Tensor
    mask_BT: torch.Tensor
    positions_BT: torch.Tensor
    temperature_B: torch.Tensor
    cache: DynamicCache

    @classmethod
    def of(cls, requests: list[Request], model: PreTrainedModel) -> Batch:
        """A batch of the requests' prompts and tokens so far, left-padded, with an empty cache."""
        from transformers import DynamicCache

        device = model.device
        rows = [request.prompt_ids + request.token_ids for request in requests]
        width = max(map(len, rows))
        ids_BT = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device)
        mask_BT = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        return cls(
            requests=requests,
            ids_BT=ids_BT,
            mask_BT=mask_BT,
            positions_BT=(mask_BT.cumsum(-1) - 1).clamp(min=0),
            temperature_B=torch.tensor([request.temperature for request in requests], device=device),
            cache=DynamicCache(config=model.config),
        )

    def advance(self, token_B: torch.Tensor) -> None:
        """Set the sampled tokens as the input of the next forward pass."""
        self.ids_BT = token_B[:, None]
        self.mask_BT = torch.cat([self.mask_BT, self.mask_BT.new_ones(len(self.requests), 1)], dim=1)
        self.positions_BT = self.positions_BT[:, -1:] + 1

    def drop_done(self) -> None:
        """Remove the rows whose requests are finished, failed or cancelled."""
        rows = [row for row, request in enumerate(self.requests) if not request.future.done()]
        if len(rows) == len(self.requests):
            return
        self.requests = [self.requests[row] for row in rows]
        rows_B = torch.tensor(rows, dtype=torch.long, device=self.ids_BT.device)
        self.cache.batch_select_indices(rows_B)
        self.ids_BT, self.temperature_B = self.ids_BT[rows_B], self.temperature_B[rows_B]
        self.mask_BT, self.positions_BT = self.mask_BT[rows_B], self.positions_BT[rows_B]


def sample_tokens(logits_BV: torch.Tensor, temperature_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row and its logprob; temperature 0: the likeliest, with its logprob at temperature 1."""
    greedy_B = temperature_B == 0
    logprobs_BV = (logits_BV.float() / temperature_B.masked_fill(greedy_B, 1.0)[:, None]).log_softmax(-1)
    token_B = logprobs_BV.argmax(-1)
    if not greedy_B.all():
        drawn_B = torch.multinomial(logprobs_BV.exp(), 1)[:, 0]
        token_B = torch.where(greedy_B, token_B, drawn_B)
    return token_B, logprobs_BV.gather(-1, token_B[:, None])[:, 0]
