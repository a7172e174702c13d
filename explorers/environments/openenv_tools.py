"""A client of OpenEnv whose environment offers tools through MCP, as tools that the model calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from explorers.conversations.shape import Function, Parameters, ToolDefinition
from explorers.environments.openenv_text import as_connection, observation_fields
from explorers.environments.text_environment import task_seed
from explorers.environments.tools import InstanceFailed, RefusedCall, check_arguments
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.core.words import ToolFailure

if TYPE_CHECKING:
    from openenv.core import EnvClient
    from openenv.core.client_types import StepResult

P = ParamSpec("P")
T = TypeVar("T")

_LIST = {"type": "mcp", "data": {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}}
"""Request to a server for its tools; by the client's own `list_tools` many servers of 0.2.1 give none, or
give them without the types of their arguments."""
_KINDS = {
    "tool_not_found": ToolFailure.UNKNOWN,
    "invalid_args": ToolFailure.MALFORMED,
    "timeout": ToolFailure.LATE,
}
"""OpenEnv's words for the failure of a call; others are errors of the tool."""


class SessionLost(InstanceFailed, ConnectionError):
    """The server ended the session, or did not answer; the rollout may be played again."""


class ServerFailed(InstanceFailed, RuntimeError):
    """The environment raised, and not one of its tools."""


class OpenEnvTools:
    """The tools of a server: a `Toolset` whose instances are sessions."""

    reward: str | None = "reward"
    resets = True

    def __init__(self, kind: Callable[..., EnvClient], args: Mapping[str, object], name: str) -> None:
        """Ask the server for its tools, in a session of its own.

        Raises: RecipeError when it cannot be asked, or has none.
        """
        self.name = name
        self._kind, self._args = kind, dict(args)
        check_arguments(name, kind, self._args)
        try:
            session = self.make()
            try:
                self.schemas = session.schemas()
            finally:
                session.close()
        except Exception as err:  # a client's own code, and what its server says
            raise RecipeError(
                f"the tools of '{name}' cannot be listed ({type(err).__name__}: {err}); start its server, "
                "and correct 'args' (base_url)."
            ) from err
        self.names = frozenset(str(one["function"]["name"]) for one in self.schemas)
        if not self.names:
            raise RecipeError(f"the server of '{name}' offers no tool; wanted an environment with MCP tools.")

    def make(self) -> OpenEnvSession:
        """A new session. Raises: ConnectionError without a server."""
        return OpenEnvSession(self._kind(**self._args))

    def reset_arguments(self, task: Task) -> dict[str, object]:
        """The task's seed, and `metadata["options"]` as further arguments."""
        return {"seed": task_seed(task), **(task.metadata.get("options") or {})}

    def problem(self, tool: str, arguments: Mapping[str, object]) -> None:
        """The server itself says why a call cannot be made."""

    def method(self, instance: OpenEnvSession, tool: str) -> Callable[..., object]:
        """The function that calls this tool in the session."""
        return partial(instance.call, tool)

    def is_over(self, instance: OpenEnvSession) -> bool:
        """Whether the environment has ended the episode."""
        return instance.done


class OpenEnvSession:
    """One session with a server, and what its steps have brought since the last reset."""

    def __init__(self, client: EnvClient) -> None:
        """Connect. Raises: SessionLost without a server."""
        self._client = client.sync() if hasattr(client, "sync") else client
        self.done = False
        self._rewards: list[float] = []
        self._lost = ""
        self._ask(self._client.connect)

    def schemas(self) -> list[ToolDefinition]:
        """The tools, in the form chat templates take."""
        answer = self._ask(self._client._send_and_receive, _LIST)["data"]
        found = answer["result"]["tools"] if "result" in answer else self._ask(self._client.list_tools)
        return [_schema(one if isinstance(one, dict) else one.model_dump()) for one in found]

    def reset(self, **options: object) -> str | None:
        """Begin anew; returns what the environment shows, None if it shows nothing."""
        self._rewards = []
        result = self._noted(self._ask(self._client.reset, **options))
        fields = observation_fields(result)
        return json.dumps(fields, ensure_ascii=False) if fields else None

    def call(self, tool: str, /, **arguments: object) -> object:
        """The value of a call. Raises: RefusedCall; SessionLost, ServerFailed."""
        from openenv.core.env_server.mcp_types import CallToolAction

        if self.done:
            raise RefusedCall(ToolFailure.RAISED, "the environment has ended; no further call is played")
        action = CallToolAction(tool_name=tool, arguments=arguments)
        observation = self._noted(self._ask(self._client.step, action)).observation
        error = getattr(observation, "error", None)
        if error is not None:
            raise RefusedCall(_KINDS.get(error.error_type.value, ToolFailure.RAISED), error.message)
        return _value(getattr(observation, "result", None))

    def reward(self) -> float | None:
        """The sum of what the steps gave; None if none gave any."""
        return sum(self._rewards) if self._rewards else None

    def close(self) -> None:
        """End the session."""
        self._client.close()

    def _ask(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the client and return its answer.

        Raises: SessionLost, also ever after: an answer that came too late would be taken for the next one's;
            ServerFailed.
        """
        if self._lost:
            raise SessionLost(self._lost)
        try:
            with as_connection():
                return ask(*args, **kwargs)
        except (ConnectionError, TimeoutError) as err:
            self._lost = f"the session with the server is lost ({type(err).__name__}: {err})"
            raise SessionLost(self._lost) from err
        except RuntimeError as err:
            raise ServerFailed(str(err)) from err

    def _noted(self, result: StepResult) -> StepResult:
        self.done = bool(result.done)
        if result.reward is not None:
            self._rewards.append(float(result.reward))
        return result


def _schema(tool: Mapping[str, Any]) -> ToolDefinition:
    given: Parameters = tool.get("input_schema") or tool.get("inputSchema") or Parameters()
    parameters: Parameters = {"type": "object", "properties": {}, **given}
    described: Function = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": parameters,
    }
    return {"type": "function", "function": described}


def _value(result: object) -> object:
    """The value that a tool returned, taken from FastMCP's result."""
    if not isinstance(result, dict) or "content" not in result:
        return result
    if result.get("data") is not None:
        return result["data"]
    return "\n".join(str(one.get("text", one)) for one in result["content"] or ())
