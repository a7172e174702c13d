"""Loads weights into a running engine. Every engine does the same: fetch, check, apply, prove.

There are three modes for requests in flight. `drain`: they finish first, and later requests wait.
`continue`: they go on with the new weights and keep the key-value cache of the old ones. `recompute`: they go
on, and their cache is computed again. No request gets tokens of weights that are not proved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, get_args

import numpy as np
import numpy.typing as npt

from explorers.engines.proof import Proof, check_idle
from explorers.transports.arrival import Arrived, Source, Transport
from rft_data.core.errors import EngineError, RecipeError, RftError
from rft_data.core.lookup import suggest
from rft_data.core.rows import VersionSpan, WeightRef
from rft_data.core.words import SwapMode

SWAPS: tuple[SwapMode, ...] = get_args(SwapMode)


def checked_mode(mode: str) -> SwapMode:
    """`mode`, when it is one of SWAPS.

    Raises: RecipeError when it is not.
    """
    for known in SWAPS:
        if mode == known:
            return known
    raise RecipeError(
        f"explorer.engine.swap is '{mode}';{suggest(mode, SWAPS)} wanted one of: {', '.join(SWAPS)}."
    )


class Segments:
    """The versions that sampled a request's tokens."""

    def __init__(self, version: int) -> None:
        """`version`: the one that samples the first token."""
        self._starts: list[tuple[int, int]] = [(version, 0)]

    def cut(self, version: int, n_tokens: int) -> None:
        """From token `n_tokens` (0-based) on, `version` samples."""
        self._starts.append((version, n_tokens))

    def spans(self, n_tokens: int) -> list[VersionSpan]:
        """One span per version that sampled a token of a completion of `n_tokens`."""
        ends = [start for _, start in self._starts[1:]] + [n_tokens]
        bounds = zip(self._starts, ends, strict=True)
        return [(version, start, end) for (version, start), end in bounds if end > start]


class Host(Protocol):
    """The methods of an engine that a swap calls. All but `idle` run without yielding to the event loop."""

    def in_flight(self) -> int:
        """Requests that are not answered yet."""
        ...

    async def idle(self) -> None:
        """Wait for those that are in flight now."""
        ...

    def apply(self, source: Source, version: int) -> None:
        """Load the weights into the model, and cut the segments of the requests in flight."""
        ...

    def score(self, sequences: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        """Logprobs of sequences under the loaded weights; other requests that finish are not answered yet."""
        ...

    def go_on(self, step: int) -> None:
        """The weights of optimizer step `step` are proved: answer the requests that have finished."""
        ...

    def drop(self, failure: EngineError) -> None:
        """Fail every request in flight."""
        ...


class WeightSwap:
    """Loads versions into one engine, one at a time."""

    def __init__(
        self, host: Host, proof: Proof, transport: Transport, *, mode: SwapMode, tolerance: float
    ) -> None:
        """`tolerance`: largest allowed difference of logprobs on the probe (nats)."""
        self.mode = mode
        self._host = host
        self._proof = proof
        self._transport = transport
        self._tolerance = tolerance
        self._gate: asyncio.Future[None] | None = None
        self._loop_lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def admitted(self) -> int:
        """Wait while requests are drained; returns the version that samples a new request.

        Raises: ParityError when nothing is served.
        """
        while self._gate is not None:
            await asyncio.shield(self._gate)
        return self._proof.version

    def load(self, ref: WeightRef) -> float:
        """Load and prove `ref` now, in an engine without requests.

        Returns: the largest absolute difference of logprobs on the probe (nats).
        Raises: EngineError while requests are in flight or another version is being loaded, for a version
            that does not grow, and when the weights cannot be applied; IntegrityError for weights that are
            not whole (the old ones are still served); ParityError (nothing is served until a good load).
        """
        check_idle(ref, self._host.in_flight())
        if self._loop_lock is not None and self._loop_lock[1].locked():
            raise EngineError(f"version {ref.version} cannot be loaded while another one is; wait for it.")
        if not self._proof.serves(ref):
            with self._transport.fetch(ref) as arrived:
                self._proof.check_complete(arrived.tensors)
                self._install(ref, arrived)
        return self._proof.difference

    async def swap(self, ref: WeightRef) -> float:
        """The same, with requests in flight. They fail with EngineError when the new weights do."""
        async with self._lock():
            if self._proof.serves(ref):
                return self._proof.difference
            with await self._fetched(ref) as arrived:
                self._proof.check_complete(arrived.tensors)
                if self.mode == "drain":
                    await self._drained(ref, arrived)
                else:
                    self._install(ref, arrived)
            return self._proof.difference

    def close(self) -> None:
        """Stop serving and close the transport."""
        self._proof.revoke()
        self._transport.close()

    async def _fetched(self, ref: WeightRef) -> Arrived:
        """Fetch the weights in a thread; requests are answered meanwhile."""
        fetching = asyncio.ensure_future(asyncio.to_thread(self._transport.fetch, ref))
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            fetching.add_done_callback(_give_up)
            raise

    async def _drained(self, ref: WeightRef, arrived: Arrived) -> None:
        gate = self._gate = asyncio.get_running_loop().create_future()
        try:
            while self._host.in_flight():
                await self._host.idle()
            self._install(ref, arrived)
        finally:
            self._gate = None
            gate.set_result(None)

    def _install(self, ref: WeightRef, arrived: Arrived) -> None:
        self._proof.revoke()
        try:
            self._host.apply({**arrived.source, "n_tensors": len(arrived.tensors)}, ref.version)
            measured = self._host.score(arrived.probe.token_ids)
            self._proof.prove(ref, arrived.probe, measured, self._tolerance)
        except BaseException as err:
            what = f"version {ref.version} could not be loaded ({type(err).__name__}: {err})"
            self._host.drop(
                EngineError(f"{what} while this request was in flight; load good weights and ask again.")
            )
            if isinstance(err, Exception) and not isinstance(err, RftError):
                raise EngineError(f"{what}; nothing is served until good weights are loaded.") from err
            raise
        self._host.go_on(ref.step)

    def _lock(self) -> asyncio.Lock:
        """The lock of the running event loop: an engine may be used from one loop after another."""
        loop = asyncio.get_running_loop()
        if self._loop_lock is None or self._loop_lock[0] is not loop:
            self._loop_lock = (loop, asyncio.Lock())
        return self._loop_lock[1]


def _give_up(fetching: asyncio.Future[Arrived]) -> None:
    """Release weights whose load was cancelled."""
    if not fetching.cancelled() and fetching.exception() is None:
        fetching.result().done(None)
