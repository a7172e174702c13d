"""Groups of rollouts, a task at a time: a run of mode `explore` in a temporary folder, and what it stored."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.loop.explore_only import ExploreLoop
from rft_data.loop.exploring import Exploring
from rft_data.recipe.extras import check_extras
from rft_data.recipe.modes import ExploreRecipe, ExplorerRecipe
from rft_data.run import assembly, build
from rft_data.run.control import RunControl
from rft_data.run.debug.chosen import played_model, played_tokenizer
from rft_data.run.explore import start_exploring
from rft_data.run.folder import Run
from rft_data.run.parts import ExploreParts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_KEPT = ("seed", "allow_unsafe_ops", "op_limits", "explorer", "experience_ops", "deadlines")


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a stored row."""

    text: str
    id: int
    logprob: float | None
    """None: the policy did not sample it."""


@dataclass(frozen=True, slots=True)
class PlayedRow:
    """A stored row of a rollout."""

    row: dict[str, object]
    """The experience's columns that say how the rollout went."""
    verdict: dict[str, object]
    """Verdict of the recipe's operators on the row; empty where they gave none."""
    tokens: tuple[Token, ...]
    """Prompt and completion; empty where an endpoint gave no tokens."""


_COLUMNS = (
    "member", "turn", "completion_text", "finish_reason", "reward", "reward_parts", "unscored_reason",
)  # fmt: skip
_VERDICT = ("verdict", "dropped_by", "reason", "advantage", "shaped_reward")


Play = Callable[[Task], list[PlayedRow]]
"""Plays a task; returns its group's rows. Raises: RecipeError for a task of another taskset; EngineError."""


@contextmanager
def playing(recipe: ExplorerRecipe, first: Task, rollouts: int) -> Iterator[Play]:
    """The recipe's engine, workflow, rewards and operators for the taskset of `first`, started once.

    Nothing is kept on the disk. Raises: what starting a run raises.
    """
    with ExitStack() as opened:
        root = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        model = played_model(recipe, root)
        small = _explore_recipe(recipe, first, rollouts, model, root)
        check_extras(small)
        build.prepare_process()
        run = opened.enter_context(closing(Run(small)))
        opened.enter_context(RunControl(run.directory))
        parts = assembly.explore_parts(small, run)
        run.begin()
        exploring = start_exploring(parts, opened)
        tokenizer = played_tokenizer(recipe, model)

        def play(task: Task) -> list[PlayedRow]:
            if task.taskset != first.taskset:
                raise RecipeError(
                    f"task {task.task_id} is of taskset '{task.taskset}', and the rewards that are built are "
                    f"those of '{first.taskset}'; play it with a call of its own: --task {task.task_id}."
                )
            before = run.buffer.counts()["experiences"]
            _play_next(parts, exploring, task)
            return stored_rows(run.buffer, tokenizer)[before:]

        yield play


def _play_next(parts: ExploreParts, exploring: Exploring, task: Task) -> None:
    """Play one group of a task and close it. Raises: EngineError when it failed."""
    parts.run.buffer.add_tasks([task])
    parts.dispatcher.tasks = {task.key: task}
    parts.dispatcher.give_back([task.key], blamed=False)
    ExploreLoop(
        exploring=exploring,
        groups=exploring.closed + 1,
        checkpoint_every=1,
        checkpoints=parts.checkpoints,
        on_progress=lambda done, total: None,
    ).run()


def stored_rows(buffer: Buffer, tokenizer: PreTrainedTokenizerBase) -> list[PlayedRow]:
    """Every stored row with its verdict."""
    said = {row["experience_id"]: row for row in buffer.read("annotations").to_pylist()}
    rows = buffer.read("experiences").to_pylist()
    return [_row(row, said.get(row["experience_id"], {}), tokenizer) for row in rows]


def task_section(task: Task, root: Path) -> dict[str, object]:
    """A section of `tasks` with this task alone, from a file that is written into `root`."""
    file = root / "task.jsonl"
    file.write_text(json.dumps({**task.metadata, "messages": list(task.messages), "answer": task.answer}))
    return {
        "name": task.taskset,
        "source": {"use": "jsonl", "path": str(file)},
        "prompt": "messages",
        "answer": None if task.answer is None else "answer",
        "metadata": sorted(task.metadata),
        **({} if task.workflow is None else {"workflow": task.workflow}),
        **({} if task.reward is None else {"reward": task.reward}),
    }


def scoring(explorer: dict[str, Any], taskset: str) -> dict[str, Any]:
    """A section `explorer` with those components of its reward that are for this taskset."""
    kept = [one for one in explorer["reward"] if taskset in (one.get("tasksets") or [taskset])]
    own = [{**one, "tasksets": [taskset]} if one.get("tasksets") else one for one in kept]
    return {**explorer, "reward": own}


def _explore_recipe(
    recipe: ExplorerRecipe, task: Task, rollouts: int, model: str, root: Path
) -> ExploreRecipe:
    """The recipe's explorers and operators on this task alone."""
    values = {key: one for key, one in recipe.model_dump().items() if key in _KEPT}
    values.setdefault("experience_ops", [])  # mode eval leaves an empty list out
    return ExploreRecipe.model_validate(
        {
            **values,
            "explorer": {
                **scoring(values["explorer"], task.taskset),
                "group_size": rollouts,
                "limits": {},
                "greedy_member": False,
            },
            "recipe": 1,
            "mode": "explore",
            "name": "debug",
            "run_dir": str(root / "run"),
            "buffer": {"uri": str(root / "buffer")},
            "model": {"path": model},
            "tasks": [task_section(task, root)],
            "selector": {"use": "shuffle"},
            "groups": 1,
        }
    )


def _row(row: dict[str, Any], verdict: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> PlayedRow:
    ids = row["token_ids"] or []
    mask, logprobs = row["action_mask"] or [0] * len(ids), row["logprobs"] or [0.0] * len(ids)
    parts = json.loads(row["reward_parts"] or "{}")
    return PlayedRow(
        {**{name: row[name] for name in _COLUMNS}, "reward_parts": parts},
        {name: verdict[name] for name in _VERDICT if name in verdict},
        tuple(
            Token(tokenizer.decode([token]), token, logprob if sampled else None)
            for token, sampled, logprob in zip(ids, mask, logprobs, strict=True)
        ),
    )
