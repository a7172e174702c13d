"""A real environment of OpenEnv: its server, which counts, and its clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Add(Action):
    number: int
    why: str = ""


class Total(Observation):
    text: str


class Counter(Environment[Add, Total, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    alive = 0

    def __init__(self) -> None:
        super().__init__()
        Counter.alive += 1

    def reset(self, seed: int | None = None, goal: int = 10, silent: bool = False, **_: Any) -> Total:
        self.total, self.goal, self.silent = 0, goal, silent
        return Total(text=f"seed {seed}: 0 of {goal}")

    def step(self, action: Add, timeout_s: float | None = None, **_: Any) -> Total:
        if action.number == 13:
            raise ValueError("13 is bad luck")
        self.total += action.number
        done = self.total >= self.goal
        reward = None if self.silent or not done else float(self.total == self.goal)
        return Total(text=f"{self.total} of {self.goal}", reward=reward, done=done)

    def close(self) -> None:
        Counter.alive -= 1

    @property
    def state(self) -> State:
        return State()


class CounterClient(EnvClient[Add, Total, State]):
    def _step_payload(self, action: Add) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Total]:
        shown = Total(**payload["observation"])
        return StepResult(shown, payload["reward"], payload["done"])

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


class Untyped(EnvClient):  # type: ignore[type-arg]
    _step_payload = _parse_result = _parse_state = None  # type: ignore[assignment]


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address of a server that runs in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    [socket] = server.servers[0].sockets
    yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


def served(sessions: int) -> Any:
    """The counter's server with so many sessions."""
    return serving(create_fastapi_app(Counter, Add, Total, max_concurrent_envs=sessions))
