"""A real environment of OpenEnv that offers tools through MCP, with its server."""

from __future__ import annotations

import threading
from typing import Any

from fastmcp import FastMCP
from openenv.core import MCPToolClient
from openenv.core.env_server import Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

from tests.explorers.environments.openenv_counter import serving

BROKEN = threading.Event()
"""While it is set, the environment raises in each step."""


class Calculator(MCPEnvironment):
    """Wants a number to be submitted, which ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    alive = 0

    def __init__(self) -> None:
        server = FastMCP("calculator")
        self.submitted: int | None = None

        @server.tool
        def add(x: int, y: int = 0) -> int:
            """Add two numbers."""
            if x == 13:
                raise ValueError("13 is bad luck")
            return x + y

        @server.tool
        def fetch(method: str, deadline_s: float) -> list[str]:
            """Words of a request."""
            return [method, f"{deadline_s:g}"]

        @server.tool
        def submit(number: int) -> str:
            """Say the answer."""
            self.submitted = number
            return "thanks"

        super().__init__(server)
        Calculator.alive += 1

    def reset(self, seed: int | None = None, wanted: int = 5, **_: Any) -> Observation:
        self.submitted, self.wanted = None, wanted
        return Observation()

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        if BROKEN.is_set():
            raise ValueError("the disk is full")
        found = super().step(action, timeout_s, **kwargs)
        if self.submitted is not None:
            found.done, found.reward = True, float(self.submitted == self.wanted)
        return found

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise NotImplementedError

    def close(self) -> None:
        Calculator.alive -= 1
        super().close()

    @property
    def state(self) -> State:
        return State()


class CalculatorClient(MCPToolClient):
    """As environments ship theirs."""


def served(sessions: int) -> Any:
    """The calculator's server with so many sessions."""
    app = create_fastapi_app(Calculator, CallToolAction, CallToolObservation, max_concurrent_envs=sessions)
    return serving(app)
