"""Plays one rollout: keeps its deadline, retries it after errors that may pass, and checks its rows.

A failed rollout is a result, not an error. Only an error that no rollout could avoid (a broken engine) is
raised.
"""

from __future__ import annotations

import asyncio
import logging

from explorers.engines.conversation import conversation
from explorers.limits import Limits
from explorers.meter import Meter
from explorers.rewards.contract import error_cause
from rft_data.core.engine import Engine
from rft_data.core.errors import RftError, RowError
from rft_data.core.masking import masked
from rft_data.core.rows import Experience, Task, experience_id_of
from rft_data.core.words import HISTORY_DRIFT, Drift
from rft_data.core.workflow import RolloutContext, Workflow

log = logging.getLogger(__name__)

TRANSIENT = (ConnectionError, TimeoutError)
"""Errors of a workflow after which the rollout is retried."""
_CANCEL_S = 1.0
"""How long to wait for a cancelled workflow to end."""
_BACKOFF_S = 0.2


class Rollouts:
    """Plays single rollouts of one workflow on one engine."""

    def __init__(self, engine: Engine, workflow: Workflow, limits: Limits, meter: Meter) -> None:
        self._engine = engine
        self._workflow = workflow
        self._limits = limits
        self._meter = meter
        self._left_behind: set[asyncio.Task[object]] = set()

    @property
    def workflow(self) -> Workflow:
        """The workflow that plays them."""
        return self._workflow

    async def play(self, task: Task, ctx: RolloutContext) -> list[Experience] | Exception:
        """The rows of one rollout, or the error with which it failed.

        Raises: RftError that is not about one row (ParityError, EngineError): no rollout could succeed.
        """
        self._meter.count("rollouts_started")
        try:
            with self._meter.during("playing"), conversation():
                outcome = await self._tried(task, ctx)
        except asyncio.CancelledError:
            self._meter.count("rollouts_cancelled")
            raise
        except RftError as err:
            self._meter.trouble("rollouts_failed", described(err), error_cause(err))
            raise
        if isinstance(outcome, Exception):
            self._meter.trouble("rollouts_failed", described(outcome), error_cause(outcome))
            return outcome
        self._meter.count("rollouts_arrived")
        self._meter.count("rows", len(outcome))
        drifted = outcome[0].metadata.get(HISTORY_DRIFT)
        for kind in (Drift.MASKED, Drift.FORKED):
            self._meter.count(f"turns_{kind}", int(drifted.get(kind, 0)) if isinstance(drifted, dict) else 0)
        self._meter.unscored(outcome)
        return outcome

    async def _tried(self, task: Task, ctx: RolloutContext) -> list[Experience] | Exception:
        """The outcome of the last attempt; all attempts share one deadline."""
        now = asyncio.get_running_loop().time
        end = now() + self._limits.rollout_deadline_s
        outcome = await self._attempt(task, ctx, end)
        for retry in range(self._limits.retries):
            # Retry a workflow's own TimeoutError, but not the one of our deadline.
            if not isinstance(outcome, TRANSIENT) or now() >= end:
                break
            self._meter.count("rollouts_retried")
            self._meter.ledger.retried()
            await asyncio.sleep(min(_BACKOFF_S * 2**retry, max(0.0, end - now())))
            outcome = await self._attempt(task, ctx, end)
        return outcome

    async def _attempt(self, task: Task, ctx: RolloutContext, end: float) -> list[Experience] | Exception:
        loop = asyncio.get_running_loop()
        running = loop.create_task(self._run(task, ctx))
        try:
            await asyncio.wait({running}, timeout=max(0.0, end - loop.time()))
            late = not running.done()
        finally:
            await self._stop(running)
        if late:
            return TimeoutError(
                f"the rollout took longer than {self._limits.rollout_deadline_s:g} s and was cancelled; "
                "correct the workflow, or raise explorer.limits.rollout_deadline_s"
            )
        if running.cancelled():
            return RuntimeError("the workflow cancelled itself")
        return running.result()

    async def _stop(self, running: asyncio.Task[object]) -> None:
        """Cancel an attempt that is not done, and wait _CANCEL_S for its end."""
        if not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=_CANCEL_S)
        if running.done():
            if not running.cancelled():
                running.exception()  # read, so that asyncio logs no warning
            return
        log.warning(
            "a workflow (%s) did not end when it was cancelled; it runs on in the background and may still "
            "use the engine",
            type(self._workflow).__name__,
        )
        self._left_behind.add(running)
        running.add_done_callback(self._left_behind.discard)

    async def _run(self, task: Task, ctx: RolloutContext) -> list[Experience] | Exception:
        try:
            rows = await self._workflow.run(task, self._engine, ctx)
            check_rows(rows, task, ctx)
        except RowError as err:
            return err
        except RftError:
            raise
        except SystemExit as err:
            return RuntimeError(f"the workflow called sys.exit({err.code!r})")
        except Exception as err:  # noqa: BLE001 - workflows are user code
            return err
        return rows


def check_rows(rows: object, task: Task, ctx: RolloutContext) -> None:
    """Check that a workflow returned at least one experience, with the ids and names of its context.

    Raises: RowError.
    """
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Experience) for row in rows):
        raise RowError(
            f"the workflow returned {str(rows)[:200]!r}; wanted a list of experiences, at least one."
        )
    for row in rows:
        wanted = experience_id_of(ctx.run_id, task.key, ctx.attempt, ctx.group_id, ctx.member, row.turn)
        found = (row.experience_id, row.run_id, row.group_id, row.member, row.source)
        if found != (wanted, ctx.run_id, ctx.group_id, ctx.member, ctx.source):
            raise RowError(
                f"the workflow named an experience {found}; wanted the id that experience_id_of gives, and "
                f"from its context {(ctx.run_id, ctx.group_id, ctx.member, ctx.source)}."
            )
    if len({row.turn for row in rows}) < len(rows):
        raise RowError(
            f"the workflow returned {len(rows)} experiences with the turns {[row.turn for row in rows]}; "
            "wanted each turn once."
        )


def described(error: Exception) -> str:
    """Type and message of an error, without values of the environment."""
    return masked(f"{type(error).__name__}: {error}")
