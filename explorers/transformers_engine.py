"""A small decoding loop on a transformers model, for machines without vLLM.

Requests made in the same turn of the event loop are decoded together as one left-padded batch; there
is no continuous batching and no prefix sharing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from explorers.isolation import RandomStream, process_state_kept
from explorers.proof import (
    TIED_HEAD,
    Proof,
    check_idle,
    check_room,
    end_token_ids,
    load_tensors,
    tolerance_of,
)
from rft_data.errors import EngineError, IntegrityError, RecipeError
from rft_data.lookup import need, suggest
from rft_data.protocols import Completion, Sampling
from rft_data.rows import WeightRef

_DEFAULTS: Mapping[str, Any] = {"dtype": "float32", "device": "cpu", "max_num_seqs": 256}


@dataclass(slots=True)
class _Request:
    """One prompt on its way; the lists grow with every decoded token."""

    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    future: asyncio.Future[None]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""

    def take(self, token_id: int, logprob: float, end_ids: frozenset[int]) -> None:
        """Append one sampled token and see whether it was the last."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        if token_id in end_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.max_tokens:
            self.finish_reason = "length"
        if self.finish_reason and not self.future.done():
            self.future.set_result(None)


class TransformersEngine:
    """Serves one proven policy version; refuses to serve before `load_weights` has proved one."""

    def __init__(
        self, model_path: Path, *, seed: int, max_model_len: int, options: Mapping[str, Any]
    ) -> None:
        """Load the model in `model_path`.

        Args:
            model_path: Hugging Face folder; its architecture counts, its weights are never served.
            seed: of sampling.
            max_model_len: longest prompt and completion together, tokens.
            options: `dtype` and `device` as torch names them, and `max_num_seqs`, the largest batch.

        Raises: RecipeError for any other option.
        """
        for name in options:
            if name not in _DEFAULTS:
                raise RecipeError(
                    f"explorer.engine.options.{name} is not an option of the transformers engine;"
                    f"{suggest(name, _DEFAULTS)} Known: {', '.join(sorted(_DEFAULTS))}."
                )
        settings = {**_DEFAULTS, **options}
        transformers = need("transformers", "train", "the transformers engine")
        # One bar for each load would bury the run's own progress.
        transformers.utils.logging.disable_progress_bar()
        self._proof = Proof(model_path)
        with process_state_kept():
            self._model: Any = (
                transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=settings["dtype"])
                .to(settings["device"])
                .eval()
                .requires_grad_(False)
            )
        self._end_ids = frozenset(end_token_ids(model_path))
        self._max_num_seqs = int(settings["max_num_seqs"])
        self._max_model_len = max_model_len
        self._tolerance = tolerance_of(str(self._model.dtype))
        self._random = RandomStream(seed)
        self._queue: list[_Request] = []
        self._decoder: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The version whose weights it has proved to serve.

        Raises: ParityError before the first good `load_weights` and after a failed one.
        """
        return self._proof.version

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion; calls made in the same turn of the event loop are decoded together.

        Raises: ParityError without proven weights, RowError for a prompt that leaves no room.
        """
        version = self.version
        check_room(prompt_ids, self._max_model_len)
        room = self._max_model_len - len(prompt_ids)
        request = _Request(
            prompt_ids=list(prompt_ids),
            max_tokens=min(sampling.max_tokens, room),
            temperature=sampling.temperature,
            future=asyncio.get_running_loop().create_future(),
        )
        self._queue.append(request)
        if self._decoder is None or self._decoder.done():
            self._decoder = asyncio.create_task(self._decode_queue())
        await request.future
        return Completion(
            token_ids=request.token_ids,
            logprobs=request.logprobs,
            finish_reason=request.finish_reason,
            version_spans=[(version, 0, len(request.token_ids))],
        )

    def load_weights(self, ref: WeightRef) -> float:
        """Copy the weights into the live model and prove them; see `Proof.load` for what may fail.

        Returns: the largest absolute difference of logprobs on the probe (nats).
        Raises: EngineError while requests are in flight or when the engine is closed.
        """
        if self._model is None:
            raise EngineError("the engine was closed; make a new one.")
        check_idle(ref, sum(not request.future.done() for request in self._queue))
        difference = self._proof.load(ref, self._apply, self._score, self._tolerance)
        self._random.restart(ref.step)
        return difference

    def close(self) -> None:
        """Free the model; idempotent."""
        self._proof.revoke()
        self._model = None

    async def _decode_queue(self) -> None:
        await asyncio.sleep(0)  # let every caller of this turn join the batch
        try:
            while batch := self._queue[: self._max_num_seqs]:
                await self._decode(batch)
                del self._queue[: len(batch)]
        except Exception as err:  # noqa: BLE001 - whatever breaks in the model, its callers must hear of it
            failure = EngineError(
                f"the model failed while sampling ({type(err).__name__}: {err}) and was closed; "
                "make a new engine."
            )
            failure.__cause__ = err
            for request in self._queue:
                if not request.future.done():
                    request.future.set_exception(failure)
            self.close()
        finally:
            self._queue.clear()

    async def _decode(self, batch: list[_Request]) -> None:
        """Sample until every request of the batch (B of them) is finished or cancelled."""
        from transformers import DynamicCache

        device = self._model.device
        width = max(len(request.prompt_ids) for request in batch)
        padding = [[0] * (width - len(request.prompt_ids)) for request in batch]
        ids_BT = torch.tensor([p + r.prompt_ids for p, r in zip(padding, batch, strict=True)], device=device)
        mask_BT = torch.tensor(
            [p + [1] * len(r.prompt_ids) for p, r in zip(padding, batch, strict=True)], device=device
        )
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        temperature_B = torch.tensor([r.temperature for r in batch], device=device)
        cache = DynamicCache(config=self._model.config)
        while batch:
            token_B = self._next_tokens(batch, ids_BT, mask_BT, positions_BT, temperature_B, cache)
            rows = [row for row, request in enumerate(batch) if not request.future.done()]
            if len(rows) < len(batch):
                batch = [batch[row] for row in rows]
                rows_B = torch.tensor(rows, dtype=torch.long, device=device)
                cache.batch_select_indices(rows_B)
                token_B, temperature_B = token_B[rows_B], temperature_B[rows_B]
                mask_BT, positions_BT = mask_BT[rows_B], positions_BT[rows_B]
            ids_BT = token_B[:, None]
            mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(batch), 1)], dim=1)
            positions_BT = positions_BT[:, -1:] + 1
            await asyncio.sleep(0)

    @torch.no_grad()
    def _next_tokens(
        self,
        batch: list[_Request],
        ids_BT: torch.Tensor,
        mask_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        temperature_B: torch.Tensor,
        cache: Any,
    ) -> torch.Tensor:
        """One forward pass; gives every request its next token."""
        logits_BV = self._model(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        with self._random.active():
            token_B, logprob_B = _sample(logits_BV, temperature_B)
        for request, token, logprob in zip(batch, token_B.tolist(), logprob_B.tolist(), strict=True):
            request.take(token, logprob, self._end_ids)
        return token_B

    def _apply(self, directory: Path) -> None:
        outcome = self._model.load_state_dict(load_tensors(directory, self._proof.tied), strict=False)
        missing = set(outcome.missing_keys) - ({TIED_HEAD} if self._proof.tied else set())
        if missing or outcome.unexpected_keys:
            raise IntegrityError(
                f"{directory} names its tensors otherwise than transformers does in memory (for example "
                f"{sorted(missing | set(outcome.unexpected_keys))[0]}); use the vllm engine for this model."
            )

    @torch.no_grad()
    def _score(self, sequences: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        """Logprobs (nats, temperature 1) of each token given the ones before; entry 0 is 0."""
        scored = []
        for row in sequences:
            ids_1T = torch.tensor([list(row)], device=self._model.device)
            logprobs_TV = (
                self._model(input_ids=ids_1T, use_cache=False).logits[0, :-1].float().log_softmax(-1)
            )
            chosen_T = logprobs_TV.gather(-1, ids_1T[0, 1:, None])[:, 0]
            scored.append(np.concatenate([np.zeros(1, np.float32), chosen_T.cpu().numpy()]))
        return scored


def _sample(logits_BV: torch.Tensor, temperature_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row and its logprob; temperature 0 takes the best and reports temperature 1."""
    greedy_B = temperature_B == 0
    logprobs_BV = (logits_BV.float() / temperature_B.masked_fill(greedy_B, 1.0)[:, None]).log_softmax(-1)
    token_B = logprobs_BV.argmax(-1)
    if not greedy_B.all():
        drawn_B = torch.multinomial(logprobs_BV.exp(), 1)[:, 0]
        token_B = torch.where(greedy_B, token_B, drawn_B)
    return token_B, logprobs_BV.gather(-1, token_B[:, None])[:, 0]
