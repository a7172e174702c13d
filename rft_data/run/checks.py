"""Checks of a recipe, by itself and against its buffer, before any engine starts.

They build what can be built without a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.core.filters import And, Compare, IsNull
from rft_data.core.lookup import need
from rft_data.core.model_folder import takes_images
from rft_data.core.words import RowSource
from rft_data.loop.closing import stored_groups
from rft_data.recipe.algorithms import find_algorithm
from rft_data.recipe.modes import OfflineRecipe, TrainingRecipe, TrainRecipe
from rft_data.recipe.offline import AnyOfflineStage
from rft_data.recipe.presets import sets_advantage
from rft_data.recipe.recipe import RunRecipe
from rft_data.recipe.sections import ExplorerSection
from rft_data.recipe.stages import RlStage
from rft_data.run.attached import planned_groups
from rft_data.run.folder import Run
from rft_data.run.stage_rows import require_heldout, require_stage_rows
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.sampler.mix import OWN
from rft_data.sampler.mixed_in import EXPERTS

_REWARD = "reward_advantage_mapper"
"""The operator that stores rewards as advantages."""
_REWARDS = frozenset({"rewards", "token_rewards"})
_GREEDY = "remax_advantage_mapper"


def check_stages(recipe: TrainingRecipe) -> None:
    """Build every stage's configuration, so that a mistake shows before any work.

    Raises: RecipeError, UnknownComponentError; MissingFileError without the teacher's folder.
    """
    for stage in recipe.offline_stages:
        check_offline_stage(recipe, stage)
    check_rl_stage(recipe, recipe.rl)


def check_offline_stage(recipe: RunRecipe, stage: AnyOfflineStage) -> None:
    """Build TRL's and PEFT's config of one stage. Raises: RecipeError, MissingExtraError."""
    need("trl", "train", "training")
    from trainers.offline.offline_stage import check_stage

    check_stage(stage.algorithm, recipe.folder, options=stage.trl, seed=recipe.seed, lora=stage.lora)


def check_explorer(section: ExplorerSection, rewards: Sequence[Mapping[str, Any]]) -> None:
    """Build rewards and limits, so that a mistake shows before any work.

    Args: rewards: those of the section, as `rewards_in_sandbox` gives them.
    Raises: RecipeError, UnknownComponentError.
    """
    from explorers.limits import recipe_limits
    from explorers.rewards.registry import is_trusted, make_reward

    recipe_limits(section.limits, section.group_size)
    for reward in rewards:
        use = reward["use"]
        if ":" not in use or is_trusted(use):  # other people's code stays out of this process
            make_reward(use, reward["args"])


def check_groups(recipe: TrainRecipe, run: Run) -> None:
    """Check that there are, or will be, enough groups, and that none was trained on before.

    Raises: RecipeError.
    """
    if run.hub is not None:
        _check_planned_groups(recipe, run)
        _check_rollouts(recipe, run.buffer)
    else:
        check_stored_groups(recipe, run.buffer, run.ledger)


def check_stored_groups(recipe: TrainRecipe, buffer: Buffer, ledger: Ledger) -> None:
    """`check_groups` where nothing is explored meanwhile."""
    _check_number(recipe, buffer, ledger)
    _check_rollouts(recipe, buffer)


def _check_rollouts(recipe: TrainRecipe, buffer: Buffer) -> None:
    _check_sampled_by_weights(recipe, buffer)
    _check_shown_images(recipe, buffer)


def _of_run(recipe: TrainRecipe) -> And:
    return And((Compare("run_id", "eq", recipe.explored_by), Compare("source", "eq", RowSource.ROLLOUT)))


def _check_shown_images(recipe: TrainRecipe, buffer: Buffer) -> None:
    """Whether rows show images to a model of text, which would be trained on their placeholders alone."""
    folder = Path(recipe.model.path or "")
    known = recipe.model.build is not None or (folder / "config.json").is_file()
    if not known or takes_images(folder):
        return
    for batch in buffer.batches("experiences", ["payloads"], where=_of_run(recipe)):
        if pc.max(pc.list_value_length(batch["payloads"])).as_py():
            raise RecipeError(
                f"run '{recipe.explored_by}' has rollouts that show images, and the model in '{folder}' "
                "takes none (its config.json has no vision_config); train the model that explored."
            )


def _check_sampled_by_weights(recipe: TrainRecipe, buffer: Buffer) -> None:
    mine = _of_run(recipe)
    if buffer.read("experiences", ["seq"], And((mine, IsNull("logprobs"))), 1).num_rows:
        raise RecipeError(
            f"run '{recipe.explored_by}' has rollouts of a model behind an endpoint (engine 'openai'), "
            "without token ids and logprobs, which the algorithms of mode 'train' need; train on them with "
            "mode 'offline' (sft, dpo)."
        )


def _check_planned_groups(recipe: TrainRecipe, run: Run) -> None:
    planned = planned_groups(run.buffer, recipe.explored_by) * run.ledger.max_uses
    needed = recipe.rl.steps * recipe.rl.groups_per_step
    if run.ledger.leases(CONSUMER):
        raise RecipeError(
            f"the groups of run '{recipe.explored_by}' are trained on by a run already; explore under "
            "another name for this one."
        )
    if planned < needed:
        raise RecipeError(
            f"run '{recipe.explored_by}' plays groups for {planned} uses; {recipe.rl.steps} steps of "
            f"{recipe.rl.groups_per_step} groups need {needed}. Lower 'steps', or explore more."
        )


def _check_number(recipe: TrainRecipe, buffer: Buffer, ledger: Ledger) -> None:
    groups = stored_groups(buffer, recipe.explored_by)
    usable = sum(bool(group.seqs) for group in groups) * ledger.max_uses
    needed = recipe.rl.steps * recipe.rl.groups_per_step
    if not groups:
        raise RecipeError(
            f"buffer {recipe.buffer.uri} has no group of a run '{recipe.explored_by}'; give the name of "
            "the recipe that explored into it (rft buffer info shows the runs)."
        )
    if ledger.leases(CONSUMER):
        raise RecipeError(
            f"the groups of run '{recipe.explored_by}' have been trained on already; explore under "
            "another name, or copy them into a buffer of their own (rft buffer branch)."
        )
    if usable < needed:
        raise RecipeError(
            f"run '{recipe.explored_by}' left {usable} uses of groups that may be trained on; "
            f"{recipe.rl.steps} steps of {recipe.rl.groups_per_step} groups need {needed}. "
            "Lower 'steps', explore more, or use 'replay'."
        )


def check_offline_stages(recipe: OfflineRecipe, run: Run) -> None:
    """Build every stage's TRL and PEFT configs and look whether the buffer has what it chooses.

    Raises: RecipeError for options; TrainingError saying what there is where a stage would find nothing.
    """
    for stage in recipe.stages:
        check_offline_stage(recipe, stage)
    if run.attempt:
        return  # a resumed run may have stages done whose rows are gone
    for stage in recipe.stages:
        require_stage_rows(stage, run.buffer)
    if recipe.heldout is not None:
        require_heldout(recipe.heldout, run.buffer)


def check_rl_stage(recipe: TrainingRecipe, stage: RlStage) -> None:
    """Build the config and the objective of the stage that trains by reinforcement.

    Raises: RecipeError, UnknownComponentError; MissingFileError without the teacher's folder.
    """
    need("trl", "train", "training")
    from trainers.policy.critic import critic_plan
    from trainers.policy.grpo_config import grpo_config
    from trainers.policy.objective import make_objective
    from trainers.policy.off_policy import off_policy_corrections

    folder, rows = recipe.folder, stage.groups_per_step * recipe.group_size
    config = grpo_config(folder, steps=stage.steps, rows_per_step=rows, options=stage.trl, seed=recipe.seed)
    corrections = off_policy_corrections(stage.off_policy.model_dump(), config)
    objective = make_objective(stage.objective, stage.trl, config, corrections)
    critic = None if stage.critic is None else stage.critic.model_dump()
    critic_plan(critic, objective.batch_ops, folder, None, stage.trl)
    _check_teacher(stage, objective.needs, read=objective.needs_reference or config.beta != 0.0)
    _check_operators(recipe, stage)
    _check_parts(recipe, stage, objective.needs)
    if config.loss_type == "dr_grpo" and objective.loss is None and "max_completion_length" not in stage.trl:
        raise RecipeError(
            "trl.loss_type 'dr_grpo' divides by the longest completion, and the recipe does not say it; give "
            "trl.max_completion_length, the explorers' max_tokens."
        )


def _check_teacher(stage: RlStage, needs: frozenset[str], *, read: bool) -> None:
    """Whether there is a teacher where one is needed, and something that reads it."""
    if stage.teacher is None:
        if "teacher" in needs:
            raise RecipeError(
                "batch_ops has an operator that learns from a teacher (distill, jsd), and the stage no "
                "'teacher'; give the folder of its model."
            )
    elif not read:
        raise RecipeError(
            "the stage has a 'teacher' that nothing reads; remove it, or add batch_ops (distill, kl_penalty) "
            "or 'kl'."
        )
    elif not (Path(stage.teacher) / "config.json").is_file():
        raise MissingFileError(
            f"teacher '{stage.teacher}' is no folder of a model (it has no config.json); give one that is."
        )


def _check_operators(recipe: TrainingRecipe, stage: RlStage) -> None:
    """Whether the operators bring what the stage takes the stored advantages for."""
    from trainers.policy.batch_ops import BATCH_OPS

    names = [name for operator in recipe.experience_ops for name in operator]
    ours = [name for name in names if name.endswith("_advantage_mapper")]
    if not any(map(sets_advantage, recipe.experience_ops)):
        raise RecipeError("'experience_ops' has no advantage operator; end it with one.")
    of_stage = [name for operator in stage.batch_ops for name in operator]
    readers = [name for name in of_stage if name in BATCH_OPS and BATCH_OPS[name].needs & _REWARDS]
    if readers and ours and ours[-1] != _REWARD:
        raise RecipeError(
            f"batch_ops has {readers[0]}, which makes advantages of rewards, and 'experience_ops' ends with "
            f"{ours[-1]}: it would take those advantages for rewards. End them with {_REWARD}."
        )
    if recipe.greedy_member not in (None, _GREEDY in names):
        raise RecipeError(
            f"explorer.greedy_member is {recipe.greedy_member} and 'experience_ops' has "
            f"{'a' if _GREEDY in names else 'no'} {_GREEDY}: the greedy answer is that operator's baseline "
            "and nothing else's. Have both or neither."
        )
    _check_pass_at_k(recipe)


def _check_pass_at_k(recipe: TrainingRecipe) -> None:
    size = recipe.group_size
    for operator in recipe.experience_ops:
        k = (operator.get("pass_at_k_advantage_mapper") or {}).get("k", 0)
        if isinstance(k, int | float) and k and k >= size:
            raise RecipeError(
                f"pass_at_k_advantage_mapper has k {k} and groups have {size} rollouts: every advantage "
                "would be 0. Give larger groups or a smaller k."
            )


def _check_parts(recipe: TrainingRecipe, stage: RlStage, needs: frozenset[str]) -> None:
    """Whether experts' rows are mixed in where the loss takes them, and only there."""
    given = recipe.sampler.args.get("parts", {}) if recipe.sampler.use == "mix" else {}
    parts = cast("Mapping[str, object]", given)
    if EXPERTS in parts and "experts" not in needs:
        raise RecipeError(
            f"the sampler mixes in '{EXPERTS}', whose rows have no logprobs, and the stage's loss cannot "
            "train on such; choose mix, chord, raft or sft (loss: {use: mix}), or remove the part."
        )
    if EXPERTS in parts and not recipe.has_experts:
        raise RecipeError(
            f"the sampler mixes in '{EXPERTS}', and the recipe has no 'experts' to make them; give some."
        )
    if EXPERTS not in parts and "experts" in find_algorithm(stage.algorithm).needs:
        raise RecipeError(
            f"'{stage.algorithm}' learns from experts beside its own rollouts, and the sampler brings none; "
            "give sampler: {use: mix, args: {parts: {own: 7, experts: 1}, max_reuse: 1000}}."
        )
    if "versions_behind" in needs and parts.keys() - {OWN, EXPERTS}:
        raise RecipeError(
            "the stage's loss counts how many versions a row is behind, and the sampler mixes in another "
            "run's, whose versions are not this run's; choose another loss, or mix in no other run."
        )
