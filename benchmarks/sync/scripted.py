"""Cost of hub, operators, sampler, metrics and conductor, without a model.

`python -m benchmarks.sync.scripted`: a real asynchronous run whose explorer and trainer wait instead of
computing, each in a process of its own. Rows, hub, commits, operators, leases, versions, checkpoints and
metrics are real. A step takes 1.7 s, as with vLLM and TRL on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from benchmarks.report import Bar, finish
from benchmarks.rows import RowMaker, as_objects
from benchmarks.sync.runs import HUB_CPU_S, hub_cpu_s
from explorers.meter import Meter
from explorers.role import ExplorerRole
from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.core.files import flush, write_manifest
from rft_data.core.groups import Group, Lease, Ticket
from rft_data.core.roles import RoleSpec
from rft_data.core.rows import FileFacts, StepReport, Task, WeightRef, experience_id_of
from rft_data.core.words import GroupOutcome, HubRole, MetricRole
from rft_data.loop.closing import GroupCloser
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.fleet import Fleet
from rft_data.loop.online import Schedule
from rft_data.placement.hub import HubServer
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.local import LocalPlacement
from rft_data.recipe.load import load_recipe
from rft_data.recipe.recipe import RunRecipe
from rft_data.run.control import RunControl
from rft_data.run.folder import Run
from rft_data.run.online_stage import reinforce
from rft_data.run.parts import RlParts, SamplerSettings, Started
from rft_data.tasks.selectors.make import make_selector

RECIPE = Path(__file__).parent / "recipe.yaml"
GROUPS, MEMBERS, TOKENS = 32, 8, 96
_STALENESS = 3
_HERE = "benchmarks.sync.scripted"
TASKS = [Task("sums", ({"role": "user", "content": f"{i}+1="},), str(i + 1)) for i in range(3000)]


class ScriptedPlayer:
    """Hands out made-up groups one after another, at uneven intervals, as an engine's batch ends."""

    def __init__(self, step_s: float) -> None:
        """`step_s`: seconds in which it plays the groups of one step."""
        self._rows = as_objects(RowMaker(TOKENS, pool=64).table(64))
        self._interval_s = step_s / GROUPS
        self._random = random.Random(0)  # noqa: S311 - no secret
        self._free_at = 0.0
        self.version = -1

    async def play(self, ticket: Ticket, task: Task) -> Group:
        """A group of MEMBERS rows once it is its turn."""
        self._free_at = max(self._free_at, time.monotonic()) + 2 * self._random.random() * self._interval_s
        await asyncio.sleep(self._free_at - time.monotonic())
        rows = tuple(self._row(ticket, task, member) for member in range(MEMBERS))
        return Group(ticket, task, rows, GroupOutcome.ARRIVED)

    def _row(self, ticket: Ticket, task: Task, member: int) -> Any:
        row = self._rows[(ticket.ordinal + member) % len(self._rows)]
        prompt = row.prompt_length
        return replace(
            row,
            experience_id=experience_id_of("sync", task.key, 0, ticket.group_id, member),
            run_id="sync",
            taskset=task.taskset,
            task_id=task.task_id,
            group_id=ticket.group_id,
            member=member,
            version_min=self.version,
            version_max=self.version,
            version_spans=((self.version, prompt, TOKENS),),
        )


class ScriptedEngine:
    """Serves what it is told to, at once."""

    def __init__(self, player: ScriptedPlayer) -> None:
        self._player = player

    async def swap_weights(self, ref: WeightRef) -> float:
        """Serve another version."""
        self._player.version = ref.version
        return 0.0

    def close(self) -> None:
        """Nothing to free."""


class NoRewards:
    """Rows have their rewards already."""

    restarts = 0

    def close(self) -> None:
        """Nothing to end."""


def explorer_role(buffer: Any, step_s: float) -> ExplorerRole:
    """Factory: the explorer's own role around the scripted parts."""
    player: Any = ScriptedPlayer(step_s)
    engine: Any = ScriptedEngine(player)
    rewards: Any = NoRewards()
    return ExplorerRole(buffer, engine, player, rewards, player, Meter())


class ScriptedTrainer:
    """Reads each lease, then waits as long as a step takes."""

    def __init__(self, buffer: Any, root: str, pipeline_hash: str, step_s: float) -> None:
        self._buffer = buffer
        self._root = Path(root)
        self._pipeline_hash = pipeline_hash
        self._step_s = step_s
        self._steps = 0

    def step(self, lease: Lease, checkpoint: bool) -> StepReport:
        """Take the lease's rows as a trainer does."""
        table = self._buffer.leased(lease, self._pipeline_hash).table
        time.sleep(self._step_s)
        self._steps += 1
        numbers = dict.fromkeys(("reward", "loss", "entropy", "kl", "clip_fraction", "grad_norm", "lr"), 0.5)
        numbers |= {"tokens": float(pc.sum(pc.list_value_length(table["token_ids"])).as_py())}
        return StepReport(numbers, {}, files=self.checkpoint() if checkpoint else {})

    def checkpoint(self) -> dict[str, FileFacts]:
        """Write the number of steps."""
        folder = self._root / f"checkpoint-{self._steps}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "steps.txt").write_text(str(self._steps))
        return flush(folder)

    def save_weights(self, directory: str, header: dict[str, Any]) -> str:
        """Write weights of one word."""
        (Path(directory) / "weights.txt").write_text(str(self._steps))
        return write_manifest(Path(directory), header)


def trainer_role(buffer: Any, plan: Mapping[str, Any]) -> ScriptedTrainer:
    """Factory."""
    return ScriptedTrainer(buffer, plan["root"], plan["pipeline_hash"], plan["step_s"])


def conduct(folder: Path, steps: int, step_s: float = 1.7) -> dict[str, list[float]]:
    """Run `steps` steps in this process, roles in others; returns each step's numbers by `role/key`."""
    changes = [
        f"run_dir={folder}",
        f"buffer.uri={folder}/buffer",
        f"stages.0.steps={steps}",
    ]
    recipe = load_recipe(RECIPE, changes)  # whose model is never loaded
    with ExitStack() as opened:
        run = Run(recipe)
        opened.callback(run.close)
        control = opened.enter_context(RunControl(folder))
        run.begin()
        run.buffer.add_tasks(TASKS)
        hub = opened.enter_context(HubServer(run.buffer))
        placement = LocalPlacement(HubAccess(hub.address, hub.token))
        opened.callback(placement.close)
        factory = f"{_HERE}:explorer_role"
        explorer = placement.start(
            RoleSpec("explorer-0", factory, {"step_s": step_s}, hub_role=HubRole.EXPLORER)
        )
        fleet = Fleet([explorer], run.versions, whole_rounds=False, deadline_s=60)
        offline: Any = None  # there are no offline stages
        stage = _stage(recipe, run, steps, step_s)
        reinforce(run, stage, Started(control, placement, fleet, offline), folder)
        return _numbers(run.buffer)


def _stage(recipe: RunRecipe, run: Run, steps: int, step_s: float) -> RlParts:
    pipeline = OperatorPipeline([{"grpo_advantage_mapper": {}}], name="experience_ops", store=run.buffer)
    checkpoints = run.directory / "checkpoints"
    plan = {"root": str(checkpoints), "pipeline_hash": pipeline.pipeline_hash, "step_s": 0.9 * step_s}
    leases = recipe.leases_by
    return RlParts(
        algorithm="grpo",
        trainer=RoleSpec("trainer", f"{_HERE}:trainer_role", {"plan": plan}),
        schedule=Schedule(steps, GROUPS, 1, 1000, 4 * GROUPS),
        sampler=SamplerSettings(leases.use, leases.args, _STALENESS, ()),
        synchronous=False,
        closer=GroupCloser(run.buffer, pipeline, run.run_id, run.attempt, MEMBERS),
        dispatcher=Dispatcher(make_selector("shuffle", {}, TASKS, 0), {task.key: task for task in TASKS}),
        curator=None,
        monitor=recipe.monitor,
        checkpoints=checkpoints,
        step_deadline_s=60,
    )


def _numbers(buffer: Buffer) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in sorted(buffer.read("metrics").to_pylist(), key=lambda row: row["step"]):
        found.setdefault(f"{row['role']}/{row['key']}", []).append(row["value"])
    return found


def main() -> None:
    """Run, then print the bar."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sync.scripted", description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--step-s", type=float, default=1.7, help="seconds of a step (default 1.7)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        numbers = conduct(Path(folder), arguments.steps, arguments.step_s)
    cpu_s = numbers[f"{MetricRole.LOOP}/cpu_s"]
    print(f"CPU seconds by step: {' '.join(f'{value:.3f}' for value in cpu_s)}")
    bar = Bar("hub_cpu_s_per_step", hub_cpu_s(cpu_s), HUB_CPU_S, ceiling=True)
    finish([bar], {name: metadata.version(name) for name in ("rft-data", "pylance")}, {"cpu_s": cpu_s})


if __name__ == "__main__":
    main()
