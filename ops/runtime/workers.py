"""Runs an operator in worker processes, on this machine or on Ray; a worker that is too slow is killed.

A worker is a role (`rft_data.placement`). It gets a part of a batch, and answers, as an Arrow stream.
`stage.py` handles failed rows, as for every other stage.
"""

from __future__ import annotations

import base64
import importlib
import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ops.runtime.hygiene import registry
from ops.runtime.limits import Limits
from ops.runtime.native import local_stage
from ops.runtime.specs import Spec, operator_class
from ops.runtime.stage import BatchError, Outcome, Stage, all_failed, apply, merge
from rft_data.core.errors import OperatorError, RftError, RoleDiedError, StalledError
from rft_data.core.roles import Placement, Role, RoleSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """An outcome as a worker returns it."""

    rows: str
    """The kept rows: an Arrow stream in base64."""
    dropped: dict[int, str]
    quarantined: dict[int, str]
    batch_error: str = ""
    """Text of the BatchError when the operator failed on the part as a whole; empty when it did not."""


class OperatorWorker:
    """The worker's role: runs one operator."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def judge(self, table: pa.Table) -> Outcome:
        """Run the operator over a part of a batch. Raises: BatchError if it failed on the part as a whole."""
        return apply(self._stage, table)

    def attempt(self, rows: str) -> Answer:
        """The same for a part as `packed` encodes it, and an answer that can be sent as JSON."""
        table = unpacked(rows)
        try:
            outcome = self.judge(table)
        except BatchError as err:
            return Answer(packed(table.slice(0, 0)), {}, {}, str(err))
        return Answer(packed(outcome.table), outcome.dropped, outcome.quarantined)


def make_worker(
    *, buffer: None, label: str, module: str, name: str, args: Mapping[str, Any], text_column: str
) -> OperatorWorker:
    """Role factory. `module` registers the operator `name`; `label` is its name in the list.

    Raises: OperatorError when this process cannot import the module; what building the operator raises.
    """
    known = registry().modules
    problem = "importing it does not register the operator"
    if ":" not in name and name not in known:
        try:
            importlib.import_module(module)
        except ImportError as err:
            problem = str(err)
    if ":" not in name and name not in known:
        raise OperatorError(
            f"operator '{name}' is defined in '{module}', which its workers cannot import ({problem}); "
            "put it at the top of a module on the Python path, or give it no workers."
        )
    return OperatorWorker(local_stage(label, Spec(name, args).build(text_column)))


class WorkerStage:
    """A stage whose operator runs in `limits.workers` processes; the first batch starts them."""

    def __init__(self, inner: Stage, spec: Spec, text_column: str, limits: Limits) -> None:
        """`inner`: the same operator in this process; it splits batches."""
        self.name = inner.name
        self._inner = inner
        self._limits = limits
        self._arguments = {
            "label": inner.name,
            "module": operator_class(spec.name).__module__,
            "name": spec.name,
            "args": dict(spec.args),
            "text_column": text_column,
        }
        self._placement: Placement | None = None
        self._roles: list[Role] = []
        self._restarts: dict[str, Future[None]] = {}

    def attempt(self, table: pa.Table) -> Outcome:
        """Give each worker a part. When a worker dies or exceeds its budget, all its rows have failed."""
        roles = self._ready()
        budget_s = math.inf if self._limits.budget_s is None else self._limits.budget_s
        parts = self.parts(table, len(roles))
        calls = [
            role.call("attempt", Answer, deadline_s=budget_s, rows=packed(part))
            for role, part in zip(roles, parts, strict=False)
        ]
        answered = zip(roles, parts, calls, strict=False)
        return merge([self._outcome(role, part, call) for role, part, call in answered])

    def parts(self, table: pa.Table, count: int) -> Sequence[pa.Table]:
        """Split as the operator itself does."""
        return self._inner.parts(table, count)

    def close(self) -> None:
        """End the workers; a later batch starts them again. Idempotent."""
        wait(self._restarts.values())  # a worker that is still starting would not be ended
        if self._placement is not None:
            self._placement.close(now=True)
        self._placement = None
        self._roles = []
        self._restarts = {}

    def _outcome(self, role: Role, part: pa.Table, call: Future[Answer]) -> Outcome:
        try:
            answer = call.result()
        except StalledError:
            failure = f"{self.name}: over its budget of {self._limits.budget_s:g} s"
        except RoleDiedError as err:
            failure = f"{self.name}: {str(err).splitlines()[0]}"
        else:
            if answer.batch_error:
                raise BatchError(answer.batch_error)
            return Outcome(unpacked(answer.rows), answer.dropped, answer.quarantined)
        self._restarts[role.name] = role.restart()
        return all_failed(part, failure)

    def _ready(self) -> list[Role]:
        """The workers, started or restarted. Raises: OperatorError if one cannot be started."""
        try:
            if self._placement is None:
                self._start()
            for name in list(self._restarts):
                self._restarts.pop(name).result()
        except RftError as err:
            self.close()
            raise OperatorError(f"the workers of operator '{self.name}' cannot be started: {err}") from err
        return self._roles

    def _start(self) -> None:
        factory = f"{make_worker.__module__}:{make_worker.__name__}"
        specs = [
            RoleSpec(f"op-{self.name}-{number}", factory, self._arguments)
            for number in range(self._limits.workers)
        ]
        placement = self._placement = _placement(self._limits)
        for warning in placement.preflight(specs):
            log.warning("%s", warning)
        with ThreadPoolExecutor(len(specs)) as threads:
            self._roles = list(threads.map(placement.start, specs))


def _placement(limits: Limits) -> Placement:
    # imported only when needed: most operator lists have no workers
    if limits.where == "ray":
        from rft_data.placement.ray import RayPlacement

        return RayPlacement(f"ops-{secrets.token_hex(8)}")
    from rft_data.placement.local import LocalPlacement

    return LocalPlacement()


def packed(table: pa.Table) -> str:
    """A table as an Arrow stream in base64."""
    return base64.b64encode(streamed(table)).decode()


def streamed(table: pa.Table) -> pa.Buffer:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def unpacked(text: str) -> pa.Table:
    """Inverse of `packed`."""
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()
