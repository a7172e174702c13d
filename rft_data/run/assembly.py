"""A recipe to the parts of its run: what plays, judges, samples and trains takes parts, never the recipe.

Everything that can be checked without an engine is checked here, before anything is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from rft_data.core.protocols import Pipeline
from rft_data.core.roles import RoleSpec
from rft_data.core.words import RunPhase, Split
from rft_data.loop.closing import GroupCloser
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.online import Schedule
from rft_data.placement.hub.run_files import RunFolders
from rft_data.recipe.modes import (
    EvalRecipe,
    ExploreRecipe,
    ExplorerRecipe,
    OfflineRecipe,
    TrainingRecipe,
    TrainRecipe,
)
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.recipe import RunRecipe
from rft_data.recipe.rewards import deciding
from rft_data.recipe.sections import Evaluation
from rft_data.run import build, checks
from rft_data.run.accuracy import evaluation_tasks
from rft_data.run.attached import hub_secret, planned_groups
from rft_data.run.folder import Run
from rft_data.run.parts import (
    AnyModel,
    EvaluateParts,
    ExploreParts,
    Heldout,
    OfflineParts,
    OnlineParts,
    RlParts,
    SamplerSettings,
    ServePlace,
    Tasks,
    TrainParts,
)
from rft_data.run.programs import rewards_in_sandbox
from rft_data.run.record import SHOWN
from rft_data.run.role_specs import explorer_specs, trainer_place, trainer_spec, weights_way
from rft_data.run.roles import Roles
from rft_data.run.served_front import ab_settings
from rft_data.run.task_setup import read_tasks, task_curator
from rft_data.sampler.awaiting import Awaiting, Delayed
from rft_data.sampler.mixed_in import EXPERTS, experts_prefix, mixed_in
from rft_data.tasks.curator import TaskCurator
from rft_data.tasks.selectors import Nothing
from rft_data.weights.adapter import adapter_in, check_base
from rft_data.weights.served import ServedModel


def online_parts(recipe: OnlineRecipe, run: Run) -> OnlineParts:
    """The parts of a run that explores and trains. Raises: RecipeError and other RftErrors."""
    with run.timed(RunPhase.CHECKS):
        pipeline = build.experience_pipeline(recipe, run.buffer)
        checks.check_explorer(recipe.explorer, rewards_in_sandbox(recipe.explorer, run))
        checks.check_stages(recipe)
        if recipe.task_upkeep is not None:
            build.task_pipeline(recipe, recipe.task_upkeep.ops, "task_upkeep.ops", run.buffer)
    with run.timed(RunPhase.TASKS):
        measured = recipe.evaluation is not None
        tasks = read_tasks(recipe, (Split.TRAIN, Split.HELDOUT) if measured else (Split.TRAIN,), run.buffer)
        dispatcher = _dispatcher(recipe, run, tasks)
        heldout = None
        if recipe.evaluation is not None:
            shaping = build.shaping_pipeline(recipe, run.buffer)
            heldout = _heldout(recipe, recipe.evaluation, tasks, shaping)
        # last: nothing may fail between the making of a model folder and the record of the run's start
        model = build.model_folder(recipe.model, run.directory, recipe.seed)
    closer = _closer(recipe, run, pipeline)
    return OnlineParts(
        run=run,
        roles=replace(
            _roles(recipe, run, [model], explorer_specs(recipe, run, model, tasks)), ab=ab_settings(recipe)
        ),
        seed=recipe.seed,
        model=model,
        tasks=tasks,
        experts=recipe.experts,
        heldout=heldout,
        offline_stages=recipe.offline_stages,
        evaluate_every=None if recipe.evaluation is None else recipe.evaluation.every,
        heldout_share=max(taskset.heldout for taskset in recipe.tasks),
        rl=_rl(recipe, run, closer, dispatcher),
    )


def explore_parts(recipe: ExploreRecipe, run: Run) -> ExploreParts:
    """The parts of a run that only explores. Raises: RecipeError and other RftErrors."""
    pipeline = build.experience_pipeline(recipe, run.buffer)
    checks.check_explorer(recipe.explorer, rewards_in_sandbox(recipe.explorer, run))
    tasks = read_tasks(recipe, (Split.TRAIN,), run.buffer)
    selector = build.task_selector(recipe.selector, tasks.of(Split.TRAIN), recipe.seed)
    model = _played(recipe, run)
    return ExploreParts(
        run=run,
        roles=_roles(recipe, run, [model], explorer_specs(recipe, run, model, tasks)),
        seed=recipe.seed,
        model=model,
        tasks=tasks,
        closer=GroupCloser(run.buffer, pipeline, run.run_id, run.attempt, recipe.explorer.least_members),
        dispatcher=Dispatcher(selector, {task.key: task for task in tasks.of(Split.TRAIN)}),
        groups=recipe.groups,
        checkpoint_every=recipe.checkpoint_every,
        checkpoints=run.directory / "checkpoints",
        monitor=recipe.monitor,
        serve=_serve(recipe),
    )


def _serve(recipe: ExploreRecipe) -> ServePlace | None:
    """The address at which trainers elsewhere reach the run. Raises: RecipeError without a secret."""
    if recipe.serve is None:
        return None
    return ServePlace(recipe.serve.host, recipe.serve.port, hub_secret("serve"), recipe.serve.idle_s)


def train_parts(recipe: TrainRecipe, run: Run) -> TrainParts:
    """The parts of a run that trains on another run's groups.

    Raises: RecipeError when that run has no groups in this buffer; other RftErrors.
    """
    pipeline = build.experience_pipeline(recipe, run.buffer)
    checks.check_stages(recipe)
    if run.attempt == 0:
        checks.check_groups(recipe, run)
    model = build.model_folder(recipe.model, run.directory, recipe.seed)
    closer = _closer(recipe, run, pipeline)
    return TrainParts(
        run=run,
        roles=_roles(recipe, run, [model]),
        seed=recipe.seed,
        model=model,
        rl=_rl(recipe, run, closer, Dispatcher(Nothing(), {})),
    )


def offline_parts(recipe: OfflineRecipe, run: Run) -> OfflineParts:
    """The parts of a run that trains on what its buffer holds.

    Raises: RecipeError; TrainingError saying what the buffer has when a stage finds nothing.
    """
    checks.check_offline_stages(recipe, run)
    model = build.model_folder(recipe.model, run.directory, recipe.seed)
    return OfflineParts(
        run=run,
        roles=_roles(recipe, run, [model]),
        seed=recipe.seed,
        model=model,
        stages=recipe.stages,
        heldout=recipe.heldout,
        trackers=recipe.monitor.trackers,
    )


def evaluate_parts(recipe: EvalRecipe, run: Run) -> EvaluateParts:
    """The parts of a run that measures models.

    Raises: MissingFileError when a pattern names no model folder; other RftErrors.
    """
    checks.check_explorer(recipe.explorer, rewards_in_sandbox(recipe.explorer, run))
    models = _measured(recipe)
    tasks = read_tasks(recipe, (Split.HELDOUT,), run.buffer)
    engine_model = models[0]
    if isinstance(engine_model, Path) and (adapter := adapter_in(engine_model)) is not None:
        check_base(adapter)
        engine_model = Path(adapter["base"])
    return EvaluateParts(
        run=run,
        roles=_roles(recipe, run, [engine_model, *models], explorer_specs(recipe, run, engine_model, tasks)),
        seed=recipe.seed,
        models=models,
        tasks=tasks,
        heldout=_heldout(recipe, recipe.evaluation, tasks, build.shaping_pipeline(recipe, run.buffer)),
        trackers=recipe.monitor.trackers,
    )


def _roles(
    recipe: RunRecipe, run: Run, models: Sequence[AnyModel], explorers: Sequence[RoleSpec] = ()
) -> Roles:
    place, trainer = recipe.placement, trainer_place(recipe)
    return Roles(
        place=place,
        run_id=run.run_id,
        directory=run.directory,
        buffer=run.buffer,
        engine=explorers[0].arguments["plan"]["engine"]["use"] if explorers else "",
        explorers=explorers,
        trainer=trainer,
        trainer_threads=None if place.use == "inline" else max(1, int(trainer.cpus)),
        deadlines=recipe.deadlines,
        feedback_port=recipe.feedback_port,
        way=weights_way(recipe, run),
        folders=RunFolders(run.directory, [model for model in models if isinstance(model, Path)], SHOWN),
        other_hub=run.hub,
    )


def _played(recipe: ExploreRecipe, run: Run) -> AnyModel:
    """The policy that plays: a folder, or a model at an endpoint."""
    url = recipe.explorer.base_url
    if url is None:
        return build.model_folder(recipe.model, run.directory, recipe.seed)
    return ServedModel(url, str(recipe.model.path))


def _measured(recipe: EvalRecipe) -> list[AnyModel]:
    """The models of an evaluation: folders, or models at an endpoint."""
    url = recipe.explorer.base_url
    if url is None:
        return [folder for pattern in recipe.models for folder in build.model_folders(pattern)]
    return [ServedModel(url, name) for name in recipe.models]


def _heldout(recipe: ExplorerRecipe, section: Evaluation, tasks: Tasks, shaping: Pipeline | None) -> Heldout:
    return Heldout(
        tasks=evaluation_tasks(tasks.all, section.limit),
        samples=section.samples,
        decided_by=recipe.explorer.decided_by,
        decided_in=deciding(recipe.explorer.reward, [one.name for one in recipe.tasks]),
        threshold=section.threshold,
        shaping=shaping,
    )


def _dispatcher(recipe: OnlineRecipe, run: Run, tasks: Tasks) -> Dispatcher:
    """The training tasks and the selector among them, which may be curated as the run goes on."""
    playable = {task.key: task for task in tasks.of(Split.TRAIN)}
    selector = build.task_selector(recipe.selector, list(playable.values()), recipe.seed)
    if recipe.task_upkeep is None:
        return Dispatcher(selector, playable)
    curator = task_curator(
        recipe, recipe.task_upkeep, selector, playable, tasks.of(Split.HELDOUT), run.buffer
    )
    return Dispatcher(curator, playable)


def _closer(recipe: TrainingRecipe, run: Run, pipeline: Pipeline) -> GroupCloser:
    """With delayed rewards, groups stay open until their rewards have come."""
    awaiting = None
    if recipe.rewards is not None:
        join = recipe.feedback_join or {}
        named: dict[str, Any] = {name: join[name] for name in ("key", "how") if name in join}
        awaiting = Awaiting(run.buffer, Delayed(recipe.rewards.wait_s, **named))
    return GroupCloser(
        run.buffer, pipeline, run.run_id, run.attempt, recipe.least_members, awaiting, run.explored_elsewhere
    )


def _rl(recipe: TrainingRecipe, run: Run, closer: GroupCloser, dispatcher: Dispatcher) -> RlParts:
    stage = recipe.rl
    checkpoints = run.directory / "checkpoints"
    curator = dispatcher.selector if isinstance(dispatcher.selector, TaskCurator) else None
    return RlParts(
        algorithm=stage.algorithm,
        trainer=trainer_spec(recipe, checkpoints, closer.pipeline.pipeline_hash),
        schedule=Schedule(
            steps=stage.steps,
            groups_per_step=stage.groups_per_step,
            publish_every=recipe.publish_every,
            checkpoint_every=stage.checkpoint_every,
            max_explored_per_step=int(stage.max_explored * stage.groups_per_step),
        ),
        sampler=_sampler(recipe),
        synchronous=recipe.synchronous,
        closer=closer,
        dispatcher=dispatcher,
        curator=curator,
        monitor=recipe.monitor,
        checkpoints=checkpoints,
        step_deadline_s=recipe.deadlines.step_s,
        colocated=recipe.placement.colocate,
        planned_elsewhere=planned_groups(run.buffer, run.run_id) if run.explored_elsewhere else None,
    )


def _sampler(recipe: TrainingRecipe) -> SamplerSettings:
    """The sampler, with the part `experts` under the prefix that the ids of its groups have."""
    use, args = recipe.sampler.use, dict(recipe.sampler.args)
    others = mixed_in(recipe.run_id, use, args)
    parts = cast("Mapping[str, object]", args.get("parts", {}) if use == "mix" else {})
    if EXPERTS in parts:
        named = {EXPERTS: experts_prefix(recipe.run_id)}
        args["parts"] = {named.get(name, name): share for name, share in parts.items()}
    return SamplerSettings(use, args, recipe.max_staleness, others)
