"""Code of both engines of vLLM, whether it is stepped in this process or runs in processes of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

from explorers.engines.images import Fetch
from explorers.engines.proof import Proof
from explorers.engines.vllm_calls import engine_closed
from explorers.engines.vllm_images import VllmImages
from explorers.engines.vllm_request import Flight, Flights
from rft_data.core.engine import Completion
from rft_data.core.errors import EngineError

if TYPE_CHECKING:
    from vllm import RequestOutput


class VllmServing(ABC):
    """Serves one proven policy version; refuses to serve before `load_weights` has proved one."""

    _proof: Proof
    _images: VllmImages
    _flights: Flights

    @property
    def version(self) -> int:
        """The version whose weights it has proved to serve.

        Raises: ParityError before the first good `load_weights` and after a failed one.
        """
        return self._proof.version

    def images_from(self, fetch: Fetch) -> None:
        """Take the bytes of images from here."""
        self._images.come_from(fetch)

    def in_flight(self) -> int:
        """Requests that are not answered yet."""
        return len(self._flights.running)

    @abstractmethod
    def close(self) -> None:
        """Stop vLLM, free its memory, and fail the requests in flight; idempotent. Any thread may call it."""

    def _end_flights(self) -> None:
        """Fail what is in flight when the engine was closed, each request in the loop of its caller."""
        for flight in list(self._flights.running.values()):
            with suppress(RuntimeError):  # its loop is closed
                flight.future.get_loop().call_soon_threadsafe(flight.fail, engine_closed())
        self._flights.running.clear()

    def _completion(self, flight: Flight, answer: RequestOutput) -> Completion:
        if self._images.taken:
            self._images.check_sampled(answer.outputs[0].token_ids)
        return flight.completion(answer, self._images.processor)

    def _break(self, err: Exception, more: str = "") -> EngineError:
        """Close the engine after an error that is not of one prompt: the state of vLLM is unknown.

        `more`: what else the message says of the error.
        """
        failure = EngineError(
            f"vLLM failed while sampling ({type(err).__name__}: {err}{more}) and was closed; "
            "make a new engine."
        )
        failure.__cause__ = err
        self._flights.fail(failure)
        self._flights.running.clear()
        self.close()
        return failure
