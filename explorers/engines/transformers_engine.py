"""A small decoding loop on a transformers model, for machines without vLLM.

Requests made in the same iteration of the event loop are decoded together as one left-padded batch; there
is no continuous batching and no prefix sharing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from explorers.engines.decoding import Batch, Request, sample_tokens
from explorers.engines.isolation import RandomStream, process_state_kept
from explorers.engines.proof import TIED_HEAD, Proof, check_prompt, end_token_ids, probe_tolerance
from explorers.engines.stopping import StopTexts
from explorers.engines.swap import Segments, WeightSwap, checked_mode
from explorers.engines.transformers_options import engine_settings
from explorers.ledger import note_unfinished
from explorers.transports import recipe_transport
from explorers.transports.arrival import Source, Transport
from explorers.transports.tensor_sources import open_source
from rft_data.core.absent import absent
from rft_data.core.engine import Completion, Sampling
from rft_data.core.errors import EngineError, IntegrityError, RecipeError
from rft_data.core.lookup import need
from rft_data.core.model_folder import most_positions
from rft_data.core.rows import WeightRef

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TransformersEngine:
    """Serves one proven policy version; refuses to serve before `load_weights` has proved one."""

    def __init__(
        self,
        model_path: Path,
        *,
        seed: int,
        max_model_len: int,
        options: Mapping[str, object],
        swap: str = "drain",
        transport: Mapping[str, object] | None = None,
    ) -> None:
        """Load the model in `model_path`.

        Args:
            model_path: Hugging Face folder; its architecture counts, its weights are never served.
            seed: of sampling.
            max_model_len: longest prompt and completion together, tokens.
            options: `dtype` and `device` as torch names them, and `max_num_seqs`, the largest batch.
            swap: what `swap_weights` does with requests in flight: drain, continue or recompute.
            transport: `use` and the arguments of one of TRANSPORTS; None: the published directory.

        Raises: RecipeError for any other option or value, for a transport that needs vLLM, and for a length
            beyond the model's table of positions.
        """
        mode = checked_mode(swap)
        _check_positions(model_path, max_model_len)
        way = recipe_transport(transport)
        _check_transport(way)
        settings = engine_settings(options)
        transformers = need("transformers", "train", "the transformers engine")
        # A progress bar for each load would hide the run's own output.
        transformers.utils.logging.disable_progress_bar()
        self._proof = Proof(model_path)
        with absent("sklearn"):  # wanted by transformers' assisted generation alone, and 0.7 s of CPU time
            from transformers import AutoModelForCausalLM
        with process_state_kept():
            self._model: Any = (  # None when closed
                AutoModelForCausalLM.from_pretrained(model_path, dtype=settings["dtype"])
                .to(settings["device"])
                .eval()
                .requires_grad_(False)
            )
        self._model_path = model_path
        self._end_ids = frozenset(end_token_ids(model_path))
        self._max_num_seqs = int(settings["max_num_seqs"])
        self.max_model_len = max_model_len
        self._vocabulary = int(self._model.get_input_embeddings().num_embeddings)
        tolerance = probe_tolerance(str(self._model.dtype))
        self._swap = WeightSwap(self, self._proof, way, mode=mode, tolerance=tolerance)
        self._random = RandomStream(seed)
        self._queue: list[Request] = []
        self._stale = False
        self._decoder: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The version whose weights it has proved to serve.

        Raises: ParityError before the first good `load_weights` and after a failed one.
        """
        return self._proof.version

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion; calls made in one event-loop iteration are decoded together.

        Raises: ParityError without proven weights, RowError for a prompt that leaves no room, EngineError
            when the model fails or new weights cannot be proved meanwhile.
        """
        version = await self._swap.admitted()
        check_prompt(prompt_ids, self.max_model_len, self._vocabulary)
        room = self.max_model_len - len(prompt_ids)
        request = Request(
            prompt_ids=list(prompt_ids),
            max_tokens=min(sampling.max_tokens, room),
            temperature=sampling.temperature,
            segments=Segments(version),
            future=asyncio.get_running_loop().create_future(),
            min_tokens=sampling.min_tokens,
            stop=StopTexts(self._decode_text, sampling.stop) if sampling.stop else None,
        )
        self._queue.append(request)
        if self._decoder is None or self._decoder.done():
            self._decoder = asyncio.create_task(self._decode_queue())
        try:
            await request.future
        except BaseException:
            note_unfinished(len(request.token_ids))
            raise
        return Completion(
            token_ids=request.token_ids,
            logprobs=request.logprobs,
            finish_reason=request.finish_reason,
            version_spans=request.segments.spans(len(request.token_ids)),
        )

    def load_weights(self, ref: WeightRef) -> float:
        """Copy the weights into the model of an engine without requests and prove them.

        Returns and raises what `WeightSwap.load` does, and EngineError when the engine is closed.
        """
        self._check_open()
        return self._swap.load(ref)

    async def swap_weights(self, ref: WeightRef) -> float:
        """The same while requests are in flight, as the engine's `swap` says; see `WeightSwap.swap`."""
        self._check_open()
        return await self._swap.swap(ref)

    def close(self) -> None:
        """Free the model; idempotent."""
        self._swap.close()
        self._model = None

    def _check_open(self) -> None:
        if self._model is None:
            raise EngineError("the engine was closed; make a new one.")

    # --- decoding ----------------------------------------------------------------------------------

    async def _decode_queue(self) -> None:
        await asyncio.sleep(0)  # let every caller of this event-loop iteration join the batch
        try:
            while waiting := self._queue[: self._max_num_seqs]:
                await self._decode([request for request in waiting if not request.future.done()])
                del self._queue[: len(waiting)]
        except Exception as err:  # noqa: BLE001 - any error of the model is passed to the callers
            failure = EngineError(
                f"the model failed while sampling ({type(err).__name__}: {err}) and was closed; "
                "make a new engine."
            )
            failure.__cause__ = err
            self.drop(failure)
            self.close()
        finally:
            self._queue.clear()

    async def _decode(self, requests: list[Request]) -> None:
        """Sample until every request is finished or cancelled."""
        batch = Batch.of(requests, self._model) if requests else None
        while batch is not None and batch.requests:
            batch.advance(self._next_tokens(batch))
            batch.drop_done()
            await asyncio.sleep(0)
            batch.drop_done()
            if self._stale and batch.requests:
                batch = Batch.of(batch.requests, self._model)
            self._stale = False

    @torch.no_grad()
    def _next_tokens(self, batch: Batch) -> torch.Tensor:
        """One forward pass; gives every request its next token."""
        logits_BV = self._model(
            input_ids=batch.ids_BT,
            attention_mask=batch.mask_BT,
            position_ids=batch.positions_BT,
            past_key_values=batch.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        held = [row for row, request in enumerate(batch.requests) if not request.may_end]
        if held:
            end_ids = torch.tensor(sorted(self._end_ids), device=logits_BV.device)
            logits_BV[torch.tensor(held, device=logits_BV.device)[:, None], end_ids] = -torch.inf
        with self._random.active():
            token_B, logprob_B = sample_tokens(logits_BV, batch.temperature_B)
        for request, token, logprob in zip(batch.requests, token_B.tolist(), logprob_B.tolist(), strict=True):
            request.take(token, logprob, self._end_ids)
        return token_B

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return need("transformers", "train", "stop strings").AutoTokenizer.from_pretrained(self._model_path)

    def _decode_text(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    # --- what a swap needs (explorers.engines.swap.Host) ---------------------------------------------------

    def in_flight(self) -> int:
        """Requests that are not answered yet."""
        return sum(not request.future.done() for request in self._queue)

    async def idle(self) -> None:
        """Wait until they are answered."""
        if self._decoder is not None:
            await asyncio.wait([self._decoder])

    def apply(self, source: Source, version: int) -> None:
        """Copy tensors into the live model, between two decoding steps."""
        self._check_open()
        for request in self._queue:
            request.segments.cut(version, len(request.token_ids))
        self._stale = self._swap.mode == "recompute"
        tied = {TIED_HEAD} if self._proof.tied else set()
        held, found = self._model.state_dict(), set()
        for name, tensor in open_source(source):  # one at a time: merged ones are copies
            if name in held and name not in tied:
                held[name].copy_(tensor)
            found.add(name)
        if differ := (held.keys() ^ found) - tied:
            raise IntegrityError(
                f"{source['use']} weights name their tensors otherwise than transformers does in memory (for "
                f"example {min(differ)}); use the vllm engine for this model."
            )

    @torch.no_grad()
    def score(self, sequences: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
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

    def go_on(self, step: int) -> None:
        """Seed the random stream for the new weights."""
        self._random.restart(step)

    def drop(self, failure: EngineError) -> None:
        """Fail every request in flight."""
        for request in self._queue:
            if not request.future.done():
                request.future.set_exception(failure)


def _check_positions(model_path: Path, max_model_len: int) -> None:
    most = most_positions(model_path)
    if most is not None and max_model_len > most:
        raise RecipeError(
            f"explorer.engine.max_model_len is {max_model_len}, and the model '{model_path}' has only {most} "
            f"positions; give {most} or less."
        )


def _check_transport(transport: Transport) -> None:
    if transport.engine_options:
        raise RecipeError(
            "explorer.engine.transport is one of vLLM's own weight transfers, which the transformers engine "
            "does not have; use directory, shm or ray, or the vllm engine."
        )
