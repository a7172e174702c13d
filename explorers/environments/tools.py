"""Tools from a class: its public typed, documented methods are what the model may call.

The class may also have `reset`, `reward` (or `get_reward`) and `close`. Classes that TRL takes as an
`environment_factory` are such classes: their `reset` takes the task's fields as keyword arguments.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol, TypeVar

from explorers.conversations.shape import ToolDefinition
from rft_data.core.errors import RecipeError
from rft_data.core.lookup import need
from rft_data.core.rows import Task
from rft_data.core.words import ToolFailure

_RESERVED = ("reset", "reward", "get_reward", "close")
"""Methods that are no tools."""
_REFUSED = {
    inspect.Parameter.POSITIONAL_ONLY: "positional-only",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_TASK = (inspect.Parameter.empty, Task, Any, "Task", "rft_data.Task", "Any")
"""Annotations of a parameter `task` that stands for our Task, and not for a field of the task."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""JSON schema's types as Python reads them from JSON."""


Instance = TypeVar("Instance")


class RefusedCall(Exception):
    """A call that gives no value; the model is told why."""

    def __init__(self, failure: ToolFailure, why: str) -> None:
        super().__init__(why)
        self.failure = failure


class InstanceFailed(Exception):
    """The instance of the tools failed, and not a call of one: the rollout fails, nothing is answered."""


class Toolset(Protocol[Instance]):
    """The tools of one kind of instances, checked before the first is used."""

    name: str
    """Its name in the recipe."""
    names: frozenset[str]
    """Names of the tools."""
    schemas: list[ToolDefinition]
    """Definitions of the tools as JSON, in the form chat templates take."""
    reward: str | None
    """Name of an instance's method that scores a rollout at its end; None without one."""
    resets: bool
    """Whether an instance can serve another rollout, after its `reset`."""

    def make(self) -> Instance:
        """A new instance."""
        ...

    def reset_arguments(self, task: Task) -> dict[str, object]:
        """The keyword arguments of `reset` for a task."""
        ...

    def problem(self, tool: str, arguments: Mapping[str, object]) -> str | None:
        """Reason why a tool cannot be called with these arguments; None when it can, or nobody knows."""
        ...

    def method(self, instance: Instance, tool: str) -> Callable[..., object]:
        """The function behind a tool, bound to the instance."""
        ...

    def is_over(self, instance: Instance) -> bool:
        """Whether the instance takes no further call."""
        ...


class ToolClass:
    """A class whose public methods are tools; checked before it is first used."""

    def __init__(self, kind: object, args: Mapping[str, object], name: str) -> None:
        """`name`: what the recipe calls it.

        Raises: RecipeError for anything but a class that takes `args` and has methods that can be offered.
        """
        if not inspect.isclass(kind):
            raise RecipeError(
                f"tools '{name}' is {type(kind).__name__} {getattr(kind, '__name__', '')}; wanted a class "
                "whose public methods are the tools."
            )
        self.name = name
        self._kind = kind
        self._args = dict(args)
        check_arguments(name, kind, self._args)
        methods = [found for found, _ in inspect.getmembers(kind, inspect.isfunction) if found[0] != "_"]
        self.names = frozenset(methods) - set(_RESERVED)
        if not self.names:
            raise RecipeError(
                f"tools '{name}': the class has no public method that could be a tool; write one with types "
                "and a docstring that has an 'Args:' section."
            )
        self.schemas = [_schema(name, kind, method) for method in sorted(self.names)]
        self._properties = {
            schema["function"]["name"]: schema["function"]["parameters"].get("properties", {})
            for schema in self.schemas
        }
        if "reward" in methods and "get_reward" in methods:
            raise RecipeError(f"tools '{name}': the class has 'reward' and 'get_reward'; keep one of them.")
        self.reward: str | None = next(
            (found for found in ("reward", "get_reward") if found in methods), None
        )
        for method in (self.reward, "close"):
            if method in methods and _needs_arguments(_parameters(kind, method)):
                raise RecipeError(
                    f"tools '{name}': {kind.__name__}.{method} needs arguments; it is called with none."
                )
        self.resets = "reset" in methods

    def make(self) -> object:
        """A new instance."""
        return self._kind(**self._args)

    def reset_arguments(self, task: Task) -> dict[str, object]:
        """Arguments of `reset`: `task` where it has a parameter of this name, else the task's fields.

        The fields are `prompt`, `answer` and those of the metadata; a `reset` without `**kwargs` gets those
        that it names. They are copies, which the class may change.
        """
        task = deepcopy(task)
        parameters = _parameters(self._kind, "reset")
        if any(one.name == "task" and one.annotation in _TASK for one in parameters):
            return {"task": task}
        fields = {
            **task.metadata,
            "prompt": [dict(message) for message in task.messages],
            "answer": task.answer,
        }
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
            return fields
        return {one.name: fields[one.name] for one in parameters if one.name in fields}

    def method(self, instance: object, tool: str) -> Callable[..., object]:
        """The method of this name."""
        found: Callable[..., object] = getattr(instance, tool)
        return found

    def is_over(self, instance: object) -> bool:
        """Never: the model ends the rollout."""
        return False

    def problem(self, tool: str, arguments: Mapping[str, object]) -> str | None:
        """Reason why a tool cannot be called with these arguments; None when it can."""
        try:
            inspect.Signature(_parameters(self._kind, tool)).bind(**arguments)
        except TypeError as err:
            return f"{tool}: {err}"
        for name, value in arguments.items():
            wanted = self._properties[tool].get(name, {})
            if not _fits(value, wanted):
                return f"{tool}: {name} is {json.dumps(value)}; wanted {json.dumps(wanted.get('type'))}"
        return None


def _schema(name: str, kind: type, method: str) -> ToolDefinition:
    """The JSON schema of one method. Raises: RecipeError when its types or docstring do not give one."""
    function = getattr(kind, method)
    for parameter in _parameters(kind, method):
        if parameter.kind in _REFUSED:
            raise RecipeError(
                f"tools '{name}': {kind.__name__}.{method} has the {_REFUSED[parameter.kind]} parameter "
                f"'{parameter.name}'; a model gives arguments by name: write each with its type."
            )
    library = need("transformers.utils", "train", "the schemas of tools")
    try:
        schema: ToolDefinition = library.get_json_schema(function)
    except Exception as err:  # types and docstring are user code
        raise RecipeError(
            f"tools '{name}': {kind.__name__}.{method} cannot be offered to a model ({type(err).__name__}: "
            f"{err}); give every argument a type and a line in the docstring's 'Args:' section."
        ) from err
    return schema


def check_arguments(name: str, kind: Callable[..., object], args: Mapping[str, object]) -> None:
    """Check what a class is made with. Raises: RecipeError when a class cannot be called with `args`."""
    try:
        inspect.signature(kind).bind(**args)
    except TypeError as err:
        raise RecipeError(
            f"tools '{name}': the class does not take the arguments {sorted(args)} ({err}); correct 'args' "
            "in the recipe."
        ) from err


def _parameters(kind: type, method: str) -> list[inspect.Parameter]:
    """The parameters of a method as its caller sees them."""
    static = isinstance(inspect.getattr_static(kind, method), staticmethod)
    return list(inspect.signature(getattr(kind, method)).parameters.values())[0 if static else 1 :]


def _needs_arguments(parameters: Sequence[inspect.Parameter]) -> bool:
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(one.default is one.empty and one.kind not in open_ended for one in parameters)


def _fits(value: object, schema: Mapping[str, Any]) -> bool:
    """Whether a value has the type of a schema and is one of its choices; inner schemas are not read."""
    if value is None and schema.get("nullable"):
        return True
    if "enum" in schema and value not in schema["enum"]:
        return False
    wanted = schema.get("type", [])
    kinds = {
        kind for one in ([wanted] if isinstance(wanted, str) else wanted) for kind in _TYPES.get(one, ())
    }
    if not kinds or isinstance(value, bool):  # Python's booleans are integers, JSON's are not
        return not kinds or bool in kinds
    return isinstance(value, tuple(kinds))
