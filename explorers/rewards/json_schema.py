"""The reward `json_schema`: whether a completion holds JSON that a schema allows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Protocol

from rft_data.core.lookup import need
from rft_data.core.rows import Task
from rft_data.core.workflow import Unscored

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_NOTHING = object()


class _Validator(Protocol):
    def is_valid(self, instance: object) -> bool: ...


class JsonSchema:
    """1.0 when the completion's JSON is valid under the schema, else 0.0.

    The JSON is the last fenced block, else the whole completion. It runs in a child: a schema's patterns
    may take for ever.
    """

    def __init__(self, schema: Mapping[str, object] | None = None, metadata: str = "schema") -> None:
        """Check the schema.

        Args: schema: for all tasks; None: each task has its own under the key `metadata` of its metadata.
        Raises: MissingExtraError without the package jsonschema; its SchemaError for a schema that is none.
        """
        self._library = need("jsonschema", "train", "the reward json_schema")
        self._schema, self._key = schema, metadata
        self._validator = None if schema is None else self._made(schema)

    def __call__(self, task: Task, completion: str) -> float | Unscored:
        """Unscored when there is no schema for the task, or it is none."""
        validator = self._validator
        if validator is None:
            schema = task.metadata.get(self._key)
            if not isinstance(schema, Mapping):
                return Unscored(f"the task's metadata has no schema under '{self._key}'")
            try:
                validator = self._made(schema)
            except self._library.SchemaError as err:
                return Unscored(f"the task's schema is none: {err.message}")
        value = _read(completion)
        return float(value is not _NOTHING and validator.is_valid(value))

    def _made(self, schema: Mapping[str, object]) -> _Validator:
        kind = self._library.validators.validator_for(schema)
        kind.check_schema(schema)
        made: _Validator = kind(schema)
        return made


def _read(completion: str) -> object:
    """The JSON value that a completion holds; _NOTHING without one."""
    fenced = _FENCED.findall(completion)
    try:
        return json.loads(fenced[-1] if fenced else completion, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NOTHING


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
