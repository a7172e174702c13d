"""The online stage of a run: puts the loop together where the run stopped, and turns it to the end.

What each part does is theirs; which phase comes when is `online`'s and `train_run`'s.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from rft_data.core.errors import RftError
from rft_data.core.protocols import Placement
from rft_data.core.rows import Lease, StepReport
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.expert_groups import book_of, open_expert_groups
from rft_data.loop.exploring import Exploring
from rft_data.loop.fleet import Fleet
from rft_data.loop.online import OnlineLoop, Schedule
from rft_data.loop.resume import Position, take_up
from rft_data.loop.training import Training
from rft_data.recipe.modes import OnlineRecipe, TrainRecipe
from rft_data.recipe.sections import RlStage
from rft_data.run import build, roles
from rft_data.run.control import RunControl
from rft_data.run.folder import Run
from rft_data.run.watch.step_log import StepLog
from rft_data.sampler.conservation import check_conservation
from rft_data.sampler.ledger import CONSUMER
from rft_data.tasks.curator import TaskCurator
from rft_data.weights.adapter import adapter_in, check_base


def reinforce(
    run: Run,
    recipe: OnlineRecipe | TrainRecipe,
    stage: RlStage,
    model: Path,
    *,
    dispatcher: Dispatcher,
    placement: Placement,
    fleet: Fleet,
    control: RunControl,
) -> dict[str, Any]:
    """Train to the stage's last step.

    Args: model: the policy the stage starts from.
    Returns: `groups` and `rows` by what became of them.
    Raises: what the loop raises; IntegrityError when the books do not add up at the end.
    """
    checkpoints = run.directory / "checkpoints"
    exploring, at = _taken_up(run, recipe, stage, dispatcher, fleet, checkpoints)
    with closing(exploring.pipeline):
        if at.directory is not None:
            _check_adapted(run, model)
        _train(run, recipe, stage, model, exploring=exploring, at=at, placement=placement, control=control)
    book = exploring.sampler.conservation()
    others = roles.mixed_in(recipe)
    rows = check_conservation(run.buffer, run.ledger, CONSUMER, book, stage.steps, others)
    return {"groups": book, "rows": rows.as_dict()}


def _train(
    run: Run,
    recipe: OnlineRecipe | TrainRecipe,
    stage: RlStage,
    model: Path,
    *,
    exploring: Exploring,
    at: Position,
    placement: Placement,
    control: RunControl,
) -> None:
    """Start the trainer where the run stands, and turn the loop to the stage's last step."""
    checkpoints = run.directory / "checkpoints"
    schedule = schedule_of(recipe, stage)
    trainer = placement.start(
        roles.trainer_spec(recipe, stage, model, checkpoints, at.directory, exploring.pipeline.pipeline_hash)
    )
    selector = exploring.dispatcher.selector

    def stepped(loop: OnlineLoop, lease: Lease, report: StepReport) -> None:
        if isinstance(selector, TaskCurator) and selector.due(loop.step):
            selector.curate(loop.step, run.ledger.retired(CONSUMER))
        watch.stepped(loop, lease, report)

    try:
        with StepLog(run, recipe.monitor, exploring, control, stage.steps) as watch:
            OnlineLoop(
                exploring=exploring,
                training=Training(
                    trainer,
                    run.versions,
                    publish_due=schedule.publish_due,
                    deadline_s=recipe.deadlines.step_s,
                ),
                versions=run.versions,
                schedule=schedule,
                checkpoints=checkpoints,
                step=at.step,
                on_step=stepped,
                stop_requested=lambda: control.stop_requested,
            ).run()
    except BaseException:
        with suppress(RftError):  # the first failure is the one to be told
            if not control.stop_now:
                trainer.close()
        raise
    trainer.close()


def _check_adapted(run: Run, model: Path) -> None:
    """See that a resumed stage's adapter is put on the model it was trained on.

    Raises: MissingFileError, IntegrityError naming the file that cannot be read or differs.
    """
    for ref in run.versions.published()[-1:]:
        if (adapter := adapter_in(Path(ref.path))) is not None:
            check_base({**adapter, "base": str(model.absolute())})


def _taken_up(
    run: Run,
    recipe: OnlineRecipe | TrainRecipe,
    stage: RlStage,
    dispatcher: Dispatcher,
    fleet: Fleet,
    checkpoints: Path,
) -> tuple[Exploring, Position]:
    """Everything but the trainer, where the run stopped; what a former trainer did from now on is fenced."""
    least_members = recipe.group_size if isinstance(recipe, TrainRecipe) else recipe.explorer.least_members
    pipeline = build.experience_pipeline(recipe, run.buffer)
    if book_of(recipe.books) in roles.mixed_in(recipe):
        open_expert_groups(run.buffer, recipe.books, pipeline.pipeline_hash, run.attempt)
    run.ledger.attach(CONSUMER)
    awaiting = roles.awaiting_of(recipe, run.buffer)
    at = take_up(
        run.buffer,
        run.ledger,
        run.versions,
        pipeline,
        dispatcher,
        checkpoints=checkpoints,
        least_members=least_members,
        synchronous=isinstance(recipe, OnlineRecipe) and recipe.sync.synchronous,
        awaiting=awaiting,
    )
    exploring = Exploring(
        buffer=run.buffer,
        ledger=run.ledger,
        sampler=roles.sampler_of(recipe, stage, run.buffer, run.ledger, run.versions, at),
        dispatcher=dispatcher,
        fleet=fleet,
        pipeline=pipeline,
        least_members=least_members,
        awaiting=awaiting,
    )
    return exploring, at


def schedule_of(recipe: OnlineRecipe | TrainRecipe, stage: RlStage) -> Schedule:
    """The loop's schedule. Where nobody explores, weights go out with the checkpoints."""
    every = recipe.sync.every if isinstance(recipe, OnlineRecipe) else stage.checkpoint_every
    return Schedule(
        steps=stage.steps,
        groups_per_step=stage.groups_per_step,
        publish_every=every,
        checkpoint_every=stage.checkpoint_every,
        max_explored_per_step=int(stage.max_explored * stage.groups_per_step),
    )
