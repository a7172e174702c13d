"""The reinforcement stage of a run: resumes the parts where the run stopped, and runs the loop to its end.

`online.py` and `train.py` call it; `loop/online.py` is the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from rft_data.core.errors import RftError
from rft_data.core.groups import Lease
from rft_data.core.roles import Role
from rft_data.core.rows import StepReport
from rft_data.loop.closing import stored_groups
from rft_data.loop.expert_groups import open_expert_groups
from rft_data.loop.exploring import Exploring
from rft_data.loop.fleet import Fleet
from rft_data.loop.following import Following
from rft_data.loop.online import OnlineLoop
from rft_data.loop.resume import Position, resume
from rft_data.loop.shared_gpus import SharedGpus, put_to_sleep
from rft_data.loop.training import Training
from rft_data.run.control import RunControl
from rft_data.run.evaluations import StepEvaluations
from rft_data.run.folder import Run
from rft_data.run.parts import RlParts, Started
from rft_data.run.retiring import RetiredByPeople, retired_by_people
from rft_data.run.roles import trained_from
from rft_data.run.watch.step_log import StepLog
from rft_data.sampler import GroupSampler, History, make_sampler
from rft_data.sampler.conservation import check_conservation, check_rows
from rft_data.sampler.ledger import CONSUMER
from rft_data.sampler.mixed_in import experts_run_id
from rft_data.weights.adapter import adapter_in, check_base


def reinforce(
    run: Run, stage: RlParts, started: Started, model: Path, evaluations: StepEvaluations | None = None
) -> dict[str, object]:
    """Train to the stage's last step.

    Args: model: the policy the stage starts from. evaluations: those during the stage, if any.
    Returns: `groups` and `rows` by what became of them.
    Raises: what the loop raises; IntegrityError when rows are unaccounted for at the end.
    """
    with closing(stage):
        people = retired_by_people(run, stage)
        exploring, at = _resumed(run, stage, started.fleet)
        if at.directory is not None:
            _check_adapted(run, model)
        if stage.colocated:
            put_to_sleep(started.fleet, stage.step_deadline_s)
        trainer = started.placement.start(trained_from(stage.trainer, model, at.directory))
        with _closed(trainer, started.control):
            _train(run, stage, started.control, trainer, exploring, at, evaluations, people)
    groups = exploring.sampler.conservation()
    others = stage.sampler.mixed_in
    if stage.planned_elsewhere is None:
        rows = check_conservation(run.buffer, run.ledger, CONSUMER, groups, stage.schedule.steps, others)
    else:  # the other run goes on: its tables change while they are counted
        rows = check_rows(run.buffer, run.ledger, CONSUMER)
    return {"groups": groups, "rows": rows.as_dict()}


def _train(
    run: Run,
    stage: RlParts,
    control: RunControl,
    trainer: Role,
    exploring: Exploring,
    at: Position,
    evaluations: StepEvaluations | None,
    people: RetiredByPeople | None,
) -> None:
    """Run the loop to the stage's last step."""
    schedule, curator = stage.schedule, stage.curator

    def stepped(loop: OnlineLoop, lease: Lease, report: StepReport) -> None:
        if curator is not None and curator.due(loop.step):
            curator.curate(loop.step, {*run.ledger.retired(CONSUMER), *exploring.ahead()})
        if people is not None and schedule.checkpoint_due(loop.step):
            people.apply()
        watch.stepped(loop, lease, report, _heldout(evaluations, loop.step, schedule.steps))

    training = Training(
        trainer, run.versions, publish_due=schedule.publish_due, deadline_s=stage.step_deadline_s
    )
    gpus = SharedGpus(exploring.fleet, training, stage.step_deadline_s)
    with StepLog(run, stage.monitor, exploring, control, schedule.steps) as watch:
        loop = OnlineLoop(
            exploring=exploring,
            buffer=run.buffer,
            ledger=run.ledger,
            training=training,
            versions=run.versions,
            schedule=schedule,
            checkpoints=stage.checkpoints,
            sealed=run.keep,
            step=at.step,
            on_step=stepped,
            stop_requested=lambda: control.stop_requested,
            shared_gpus=gpus if stage.colocated else None,
        )
        loop.publish_first()
        # again, so that an engine's random numbers go on from where they were in a run without a break
        _heldout(evaluations, at.step, schedule.steps)
        loop.repeat()


def _heldout(evaluations: StepEvaluations | None, step: int, steps: int) -> dict[str, float]:
    """Held-out figures of the published weights of `step`, where they are due before the last step."""
    if evaluations is None or step == steps or not evaluations.due(step):
        return {}
    return evaluations.measure(step)


@contextmanager
def _closed(trainer: Role, control: RunControl) -> Iterator[None]:
    """Close the trainer after the block; of two failures the first is reported."""
    try:
        yield
    except BaseException:
        with suppress(RftError):
            if not control.stop_now:
                trainer.close()
        raise
    trainer.close()


def _check_adapted(run: Run, model: Path) -> None:
    """Check that a resumed stage's adapter belongs to this model.

    Raises: MissingFileError, IntegrityError naming the file that cannot be read or differs.
    """
    for ref in run.versions.published()[-1:]:
        if (adapter := adapter_in(Path(ref.path))) is not None:
            check_base({**adapter, "base": str(model.absolute())})


def _resumed(run: Run, stage: RlParts, fleet: Fleet) -> tuple[Exploring, Position]:
    """Every part but the trainer, where the run stopped. From now on the calls of an earlier trainer fail."""
    closer = stage.closer
    if experts_run_id(run.run_id) in stage.sampler.mixed_in:
        open_expert_groups(run.buffer, run.run_id, closer.pipeline.pipeline_hash, run.attempt)
    run.ledger.attach(CONSUMER)
    at = resume(
        closer,
        run.ledger,
        run.versions,
        stage.dispatcher,
        checkpoints=stage.checkpoints,
        synchronous=stage.synchronous,
    )
    sampler = _sampler(run, stage, at)
    if stage.planned_elsewhere is not None:
        following = Following(closer, sampler, stage.dispatcher, fleet, planned=stage.planned_elsewhere)
        following.know(at.history)
        return following, at
    exploring = Exploring(closer, sampler, stage.dispatcher, fleet, repeats=dict(at.repeats))
    return exploring, at


def _sampler(run: Run, stage: RlParts, at: Position) -> GroupSampler:
    """The version-aware sampler, its groups and leases as the run left them."""
    settings = stage.sampler
    others = [group for run_id in settings.mixed_in for group in stored_groups(run.buffer, run_id)]
    sampler = make_sampler(
        settings.use,
        settings.args,
        ledger=run.ledger,
        versions=run.versions,
        consumer=CONSUMER,
        groups_per_step=stage.schedule.groups_per_step,
        max_staleness=settings.max_staleness,
        history=History([*at.history, *others], settled_steps=at.step),
    )
    if "sampler" in at.state:
        sampler.load_state_dict(at.state["sampler"])
    return sampler
