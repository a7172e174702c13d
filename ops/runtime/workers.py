"""An operator in processes of its own: killable, several at a time, on this machine or on Ray.

A worker is a role (`rft_data.placement`); a part of a batch goes to it and back as an Arrow stream.
Which rows fail, and what that means, is decided where any other stage's are.
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
from ops.runtime.specs import Spec
from ops.runtime.stage import BatchError, Outcome, Stage, all_failed, apply, merge
from rft_data.core.errors import OperatorError, RftError, RoleDiedError, StalledError
from rft_data.core.protocols import Placement, Role, RoleSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """An outcome on its way back."""

    rows: str
    """Those that stay: an Arrow stream in base64."""
    dropped: dict[int, str]
    quarantined: dict[int, str]
    no_blame: str = ""
    """Why the whole part failed, if no row of it can be blamed."""


class OperatorWorker:
    """The role: one operator."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def attempt(self, rows: str) -> Answer:
        """Run it over a part of a batch."""
        table = unpacked(rows)
        try:
            outcome = apply(self._stage, table)
        except BatchError as err:
            return Answer(packed(table.slice(0, 0)), {}, {}, str(err))
        return Answer(packed(outcome.table), outcome.dropped, outcome.quarantined)


def make_worker(
    *, buffer: None, label: str, module: str, name: str, args: Mapping[str, Any], text_column: str
) -> OperatorWorker:
    """The factory. `module` registers the operator `name`; `label` is its name in the list.

    Raises: OperatorError when there is no such module here; what building the operator raises.
    """
    known = registry().modules
    problem = "importing it does not register the operator"
    if name not in known:
        try:
            importlib.import_module(module)
        except ImportError as err:
            problem = str(err)
    if name not in known:
        raise OperatorError(
            f"operator '{name}' is defined in '{module}', which is of no use to its workers ({problem}); "
            "put it at the top of a module on the Python path, or give it no workers."
        )
    return OperatorWorker(local_stage(label, Spec(name, args).build(text_column)))


class WorkerStage:
    """A stage whose operator runs in `limits.workers` processes, started when first needed."""

    def __init__(self, inner: Stage, spec: Spec, text_column: str, limits: Limits) -> None:
        """`inner`: the same operator here, which knows how a batch may be split."""
        self.name = inner.name
        self._inner = inner
        self._limits = limits
        self._arguments = {
            "label": inner.name,
            "module": registry().modules[spec.name].__module__,
            "name": spec.name,
            "args": dict(spec.args),
            "text_column": text_column,
        }
        self._placement: Placement | None = None
        self._roles: list[Role] = []
        self._restarts: dict[str, Future[None]] = {}

    def attempt(self, table: pa.Table) -> Outcome:
        """Give each worker a part; the rows of one that dies or is over its budget have failed."""
        roles = self._ready()
        budget_s = math.inf if self._limits.budget_s is None else self._limits.budget_s
        parts = self.parts(table, len(roles))
        calls = [
            role.call("attempt", Answer, deadline_s=budget_s, rows=packed(part))
            for role, part in zip(roles, parts, strict=False)
        ]
        return merge([self._outcome(*asked) for asked in zip(roles, parts, calls, strict=False)])

    def parts(self, table: pa.Table, count: int) -> Sequence[pa.Table]:
        """As the operator itself."""
        return self._inner.parts(table, count)

    def close(self) -> None:
        """End the workers; they are started again when needed. Idempotent."""
        wait(self._restarts.values())  # ending what is being born would leave it behind, or worse on Ray
        if self._placement is not None:
            self._placement.close(now=True)
        self._placement, self._roles, self._restarts = None, [], {}

    def _outcome(self, role: Role, part: pa.Table, call: Future[Answer]) -> Outcome:
        try:
            answer = call.result()
        except StalledError:
            failure = f"{self.name}: over its budget of {self._limits.budget_s:g} s"
        except RoleDiedError as err:
            failure = f"{self.name}: {str(err).splitlines()[0]}"
        else:
            if answer.no_blame:
                raise BatchError(answer.no_blame)
            return Outcome(unpacked(answer.rows), answer.dropped, answer.quarantined)
        self._restarts[role.name] = role.restart()
        return all_failed(part, failure)

    def _ready(self) -> list[Role]:
        """The workers, all alive. Raises: OperatorError if one cannot be started."""
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
    # placements bring asyncio and subprocess in, which few lists need
    if limits.where == "ray":
        from rft_data.placement.ray import RayPlacement

        return RayPlacement(f"ops-{secrets.token_hex(8)}")
    from rft_data.placement.local import LocalPlacement

    return LocalPlacement()


def packed(table: pa.Table) -> str:
    """A table as text."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return base64.b64encode(sink.getvalue()).decode()


def unpacked(text: str) -> pa.Table:
    """What `packed` packed."""
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()
