"""The routes of a capturing server beside vLLM's: trajectories are opened, rewarded, ended and given up.

Who may do so is checked before these routes, by `gate.Front`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from explorers.capture.service import Service
from explorers.capture.store import Given
from rft_data.core.canonical import canonical_json
from rft_data.core.chat import chat
from rft_data.core.errors import BusyError, RftError, RowError
from rft_data.core.rows import Task

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class GivenTask(_Body):
    """The task of a trajectory, given by the client that opens it."""

    taskset: Name = "served"
    messages: list[dict[str, Any]] = Field(default=[], max_length=1000)
    """The prompt, as chat messages."""
    answer: str | None = None
    metadata: dict[str, object] = {}


class Opening(_Body):
    """POST /trajectories."""

    task: GivenTask | None = None


class Reward(_Body):
    """POST /trajectories/ID/reward."""

    reward: FiniteFloat
    parts: dict[Name, FiniteFloat] = Field(default={}, max_length=100)
    author: Name = "client"


class Ending(_Body):
    """POST /trajectories/ID/end."""

    reward: FiniteFloat | None = None
    parts: dict[Name, FiniteFloat] = Field(default={}, max_length=100)

    @model_validator(mode="after")
    def _whole(self) -> Ending:
        if self.parts and self.reward is None:
            raise ValueError("'parts' are of a reward, and there is none; give 'reward' too")
        return self


class Leaving(_Body):
    """POST /trajectories/ID/abandon."""

    reason: str = Field(default="", max_length=500)


def control_app(service: Service) -> FastAPI:
    """The routes."""
    app = FastAPI(title="rft serve", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(RftError, _failed)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok" if service.serves else "closed"}

    @app.post("/trajectories", status_code=201, response_model=None)
    async def open_trajectory(
        request: Request, body: Opening | None = None
    ) -> dict[str, object] | JSONResponse:
        try:
            trajectory = await service.open(_task(body.task if body else None))
        except BusyError as err:
            return JSONResponse({"detail": str(err)}, 429, {"retry-after": "5"})
        host = f"{request.url.scheme}://{request.url.netloc}"
        return {
            "id": trajectory.id,
            "base_url": host + service.capture.path(trajectory.id),
            "key": service.capture.key(trajectory.id),
            "deadline_s": service.deadline_s,
        }

    @app.get("/trajectories/{name}", response_model=None)
    async def look(name: str) -> Mapping[str, object]:
        return _found(await service.look(name))

    @app.post("/trajectories/{name}/reward", response_model=None)
    async def reward(name: str, body: Reward) -> Mapping[str, object]:
        return _found(await service.reward(name, Given(body.reward, body.parts), body.author))

    @app.post("/trajectories/{name}/end", response_model=None)
    async def end(name: str, body: Ending | None = None) -> Mapping[str, object]:
        given = None if body is None or body.reward is None else Given(body.reward, body.parts)
        return _found(await service.end(name, given))

    @app.post("/trajectories/{name}/abandon", response_model=None)
    async def abandon(name: str, body: Leaving | None = None) -> Mapping[str, object]:
        return _found(await service.abandon(name, body.reason if body else ""))

    return app


def _task(given: GivenTask | None) -> Task | None:
    if given is None:
        return None
    try:
        messages = tuple(chat(given.messages, "task.messages")) if given.messages else ()
        canonical_json([given.answer, given.metadata, *messages]).encode()
    except (RowError, ValueError) as err:  # NaN, halves of surrogate pairs
        raise HTTPException(422, f"the task cannot be stored: {type(err).__name__}.") from err
    return Task(given.taskset, messages, given.answer, metadata=given.metadata)


def _found(answer: Mapping[str, object] | None) -> Mapping[str, object]:
    if answer is None:
        raise HTTPException(
            404, "there is no such trajectory; it was given up, lost, or is of another server."
        )
    return answer


async def _invalid(_: Request, err: Exception) -> JSONResponse:
    """The mistakes in a body, without repeating the body."""
    assert isinstance(err, RequestValidationError)  # noqa: S101 - for the type checker
    wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in err.errors()]
    return JSONResponse({"detail": wrong}, 422)


async def _failed(_: Request, err: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(err)}, 409 if isinstance(err, BusyError) else 400)
