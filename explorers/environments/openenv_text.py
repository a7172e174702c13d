"""A client of OpenEnv as text: its server's observations are shown, and replies are its actions."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard, get_args, get_origin

from explorers.environments.text_environment import (
    WHOLE,
    Shown,
    compiled,
    last_match,
    task_seed,
    words_pattern,
)
from rft_data.core.canonical import content_id
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task

if TYPE_CHECKING:
    from openenv.core import EnvClient
    from openenv.core.client_types import StepResult

_NUMBERS = {int: r"-?\d+", float: r"-?\d+(?:\.\d+)?"}
_OUTCOME = {"done", "reward", "metadata"}
"""Fields of every observation that are not what it shows."""
_MCP = ("openenv.core.mcp_client", "MCPClientBase")
"""Module and name of the class of clients whose environments offer tools."""
_FULL = "CAPACITY_REACHED"
"""OpenEnv's word for a server that has no session left."""


def offers_tools(kind: object) -> TypeGuard[type[EnvClient]]:
    """Whether a class is a client whose environment offers tools. Only a package that is loaded counts."""
    loaded = sys.modules.get(_MCP[0])
    return loaded is not None and isinstance(kind, type) and issubclass(kind, getattr(loaded, _MCP[1]))


class OpenEnvText:
    """One session with a server. `action` makes the client's action out of a reply.

    A reply that is a JSON object with fields of the action is that action. Else, where the action has one
    field that must be given, the reply is its value: a text, its last number, or a word of `actions`.
    """

    def __init__(
        self, client: EnvClient, actions: Mapping[str, object] | None = None, pattern: str | None = None
    ) -> None:
        """Connect. `pattern`: where in a reply the value of the action's one field stands.

        Raises: RecipeError for an action that no text can be; ConnectionError without a server.
        """
        self._type = _action_type(type(client))
        self._fields = {} if self._type is dict else dict(self._type.model_fields)
        needed = [name for name, one in self._fields.items() if one.is_required()]
        self._only = needed[0] if len(needed) == 1 else None
        self._actions = {word.lower(): value for word, value in (actions or {}).items()}
        if self._only is None and (actions or pattern):
            raise RecipeError(
                f"'actions' and 'pattern' are for actions that need one field, {self._name} needs {needed}: "
                "leave them out; a reply is a JSON object then."
            )
        self._pattern = compiled(self._rule() if pattern is None else pattern)
        self._client = client.sync() if hasattr(client, "sync") else client
        with as_connection():
            self._client.connect()

    @property
    def wanted(self) -> str:
        """Form of a reply, in words for the model."""
        if self._actions:
            return f"one of: {', '.join(self._actions)}"
        if self._only is not None:
            return f"a value for '{self._only}'"
        return f"a JSON object with the fields of {self._name}: {', '.join(self._own)}"

    def reset(self, task: Task) -> Shown:
        """Begin anew for a task, with its seed and `metadata["options"]` as further arguments."""
        options = task.metadata.get("options") or {}
        with as_connection():
            return _shown(self._client.reset(seed=task_seed(task), **options))

    def action(self, reply: str) -> object:
        """The action that a reply means; None when it means none that the client takes."""
        given = _json_object(reply)
        if given is not None and (self._type is dict or {*given} <= {*self._fields}):
            return self._made(given)
        text = last_match(self._pattern, reply) if self._only is not None else None
        if self._only is None or text is None:
            return None
        value = self._actions.get(text.lower()) if self._actions else text
        return None if value is None else self._made({self._only: value})

    def step(self, action: object) -> Shown:
        with as_connection():
            return _shown(self._client.step(action))

    def close(self) -> None:
        """End the session."""
        self._client.close()

    @property
    def _name(self) -> str:
        return str(self._type.__name__)

    @property
    def _own(self) -> list[str]:
        return [name for name in self._fields if name not in _OUTCOME]

    def _rule(self) -> str:
        if self._actions:
            return words_pattern(self._actions)
        return _NUMBERS.get(self._fields[self._only].annotation, WHOLE) if self._only else WHOLE

    def _made(self, given: Mapping[str, object]) -> object:
        """The action with these fields; None when the client's class refuses them."""
        if self._type is dict:
            return dict(given)
        try:
            return self._type.model_validate(given)
        except ValueError:  # pydantic's ValidationError is one
            return None


def _action_type(client: type) -> Any:
    """The class of a client's actions, the first argument of `EnvClient[...]`; dict for JSON objects.

    Raises: RecipeError where it is neither.
    """
    from openenv.core import EnvClient

    bases = [base for kind in client.__mro__ for base in kind.__dict__.get("__orig_bases__", ())]
    for base in bases:
        if isinstance(get_origin(base), type) and issubclass(get_origin(base), EnvClient):
            action = get_args(base)[0]
            if dict in (action, get_origin(action)):
                return dict
            if hasattr(action, "model_validate"):
                return action
    if offers_tools(client):
        raise RecipeError(
            f"the environment of {client.__name__} offers tools; name it as 'tools' of the workflow tools."
        )
    raise RecipeError(
        f"the client {client.__name__} does not say what its actions are; wanted a subclass of "
        "EnvClient[Action, Observation, State], its action a pydantic model or a dict."
    )


def observation_fields(result: StepResult) -> dict[str, object]:
    """Content of an observation: its fields but the outcome, as JSON values."""
    found = result.observation
    plain = found.model_dump(mode="json") if hasattr(found, "model_dump") else dict(found)
    return {name: value for name, value in plain.items() if name not in _OUTCOME}


def _shown(result: StepResult) -> Shown:
    plain = observation_fields(result)
    texts = list(plain.values())
    text = (
        texts[0] if len(texts) == 1 and isinstance(texts[0], str) else json.dumps(plain, ensure_ascii=False)
    )
    reward = None if result.reward is None else float(result.reward)
    return Shown(text, content_id(plain), reward, bool(result.done))


def _json_object(reply: str) -> dict[str, object] | None:
    """The outermost JSON object in a reply; None where there is none."""
    found = re.search(r"(?s)\{.*\}", reply)
    try:
        value = json.loads(found[0]) if found else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@contextmanager
def as_connection() -> Iterator[None]:
    """A session that the server ended, or has not got, as ConnectionError: it may pass."""
    from websockets.exceptions import ConnectionClosed

    try:
        yield
    except (ConnectionClosed, RuntimeError) as err:
        if isinstance(err, RuntimeError) and _FULL not in str(err):
            raise
        raise ConnectionError(
            f"the OpenEnv server ended the session ({err}); if it has too few, make 'pool: {{size: N}}' "
            "at most its max_concurrent_envs"
        ) from err
