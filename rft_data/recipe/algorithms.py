"""Algorithms by name: what a stage's `algorithm` sets where the recipe does not.

Pure data: names of operators, losses and options. A preset of your own is an `Algorithm` that the recipe
names by import path (`package.module:NAME`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rft_data.core.errors import RecipeError, UnknownComponentError
from rft_data.core.lookup import is_import_path, lookup

Settings = Mapping[str, object]
Operators = Sequence[Mapping[str, Settings]]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One preset. Everything in it can be overridden by the recipe key of the same name."""

    summary: str
    """One line on what it does, shown by `rft recipe explain` and docs/algorithms.md."""
    paper: str
    """arXiv id, or another source."""
    advantage: Operators
    """Appended to `experience_ops` where no operator there sets an advantage."""
    trl_loss: Settings = field(default_factory=dict)
    """Options of TRL's own losses; not used where the stage names a loss of ours."""
    trl: Settings = field(default_factory=dict)
    """Other options of TRL's trainer."""
    loss: Settings | None = None
    """One of ours: `{use, args}`; None: TRL's."""
    batch_ops: Operators = ()
    """Operators over the whole lease, after `advantage`."""
    kl: Settings | None = None
    """The stage's `kl` section; None: no KL term."""
    critic: Settings | None = None
    """The stage's `critic` section, `{}` for its defaults; None: no critic."""
    off_policy: Settings | None = None
    """The stage's `off_policy` section; None: its defaults."""
    sampler: Settings | None = None
    """The recipe's `sampler` section; None: fifo."""
    group_size: int = 8
    """Rollouts per task, the default of `explorer.group_size`."""
    greedy_member: bool = False
    """Whether member 0 of each group is decoded greedily, as a baseline."""
    least_group: int = 2
    """Smallest group that gives anything to learn from."""
    needs: frozenset[str] = frozenset()
    """Further keys that the recipe must have: `teacher` (the stage's), `experts`."""


_GRPO: Operators = [{"grpo_advantage_mapper": {}}]
_REWARD: Operators = [{"reward_advantage_mapper": {}}]
_TOKEN_MEAN = {"loss_type": "dapo", "epsilon": 0.2}
"""The clipped surrogate (arXiv:1707.06347), averaged over the tokens of the step."""


def _ours(use: str, **args: object) -> Settings:
    return {"use": use, "args": args}


ALGORITHMS: Mapping[str, Algorithm] = {
    "grpo": Algorithm(
        "group-relative advantages, clipped ratios, mean over each row's tokens; no KL (the paper: 0.04)",
        "arXiv:2402.03300",
        _GRPO,
        {"loss_type": "grpo", "epsilon": 0.2},
    ),
    "dr_grpo": Algorithm(
        "no division by the group's std nor by each row's length",
        "arXiv:2503.20783",
        [{"grpo_advantage_mapper": {"scale": "none"}}],
        {"loss_type": "dr_grpo", "epsilon": 0.2},
    ),
    "dapo": Algorithm(
        "groups of one outcome refilled, clip-higher, mean over the step's tokens",
        "arXiv:2503.14476",
        [{"dynamic_sampling_filter": {}}, *_GRPO],
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
    ),
    "gspo": Algorithm(
        "ratios and clipping by sequence",
        "arXiv:2507.18071",
        _GRPO,
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
        },
    ),
    "cispo": Algorithm(
        "clipped importance weights on log-likelihoods; no token loses its gradient",
        "arXiv:2506.13585",
        _GRPO,
        {"loss_type": "cispo", "epsilon_high": 5.0},
    ),
    "sapo": Algorithm(
        "a soft gate on the ratio instead of a clip", "arXiv:2511.20347", _GRPO, {"loss_type": "sapo"}
    ),
    "luspo": Algorithm(
        "sequence ratios, rows weighted by their length",
        "arXiv:2602.05261",
        _GRPO,
        {
            "loss_type": "luspo",
            "importance_sampling_level": "sequence",
            "epsilon": 2e-3,
            "epsilon_high": 2.5e-3,
        },
    ),
    "vespo": Algorithm(
        "a smooth weight of the sequence's ratio, from a variational bound",
        "arXiv:2602.10693",
        _GRPO,
        {"loss_type": "vespo"},
    ),
    "rloo": Algorithm(
        "leave-one-out baseline", "arXiv:2402.14740", [{"rloo_advantage_mapper": {}}], _TOKEN_MEAN
    ),
    "remax": Algorithm(
        "the reward of a greedy answer as the baseline",
        "arXiv:2310.10505",
        [{"remax_advantage_mapper": {}}],
        loss=_ours("policy_gradient"),
        group_size=2,
        greedy_member=True,
    ),
    "reinforce": Algorithm(
        "the reward itself as the advantage, no ratio",
        "doi:10.1007/BF00992696",
        _REWARD,
        loss=_ours("policy_gradient"),
        group_size=1,
        least_group=1,
    ),
    "reinforce_plus_plus": Algorithm(
        "returns of the tokens, whitened over the batch; no KL (the paper: kl_penalty in batch_ops)",
        "arXiv:2501.03262",
        _REWARD,
        _TOKEN_MEAN,
        batch_ops=[{"returns_to_go": {"gamma": 1.0}}, {"whiten": {}}],
        group_size=1,
        least_group=1,
    ),
    "reinforce_plus_plus_baseline": Algorithm(
        "group mean as the baseline, whitened over the whole batch",
        "arXiv:2501.03262",
        [{"grpo_advantage_mapper": {"scale": "none"}}],
        _TOKEN_MEAN,
        batch_ops=[{"whiten": {}}],
    ),
    "opmd": Algorithm(
        "mirror descent on a group's rewards, off-policy by construction",
        "arXiv:2505.17826",
        [{"opmd_advantage_mapper": {}}],
        loss=_ours("opmd"),
    ),
    "asymre": Algorithm(
        "REINFORCE off-policy with a baseline below the mean",
        "arXiv:2506.20520",
        [{"asymre_advantage_mapper": {}}],
        loss=_ours("policy_gradient"),
        off_policy={"old_logprobs": "rollout"},  # without weights, by design: the baseline takes their place
    ),
    "rec": Algorithm(
        "one-sided clipping of REINFORCE with importance weights",
        "arXiv:2509.24203",
        [{"grpo_advantage_mapper": {"scale": "none"}}],
        loss=_ours("rec", weight="importance"),
    ),
    "topr": Algorithm(
        "tapered importance weights on what went wrong, none on what went right",
        "arXiv:2503.14286",
        [{"grpo_advantage_mapper": {"scale": "none"}}],
        loss=_ours("topr"),
    ),
    "sppo": Algorithm(
        "mirror-descent surrogate with a hard mask on the ratio",
        "arXiv:2108.05828",
        [{"opmd_advantage_mapper": {}}],
        loss=_ours("sppo"),
    ),
    "m2po": Algorithm(
        "stale tokens masked until the second moment of the log ratio is bounded",
        "arXiv:2510.01161",
        _GRPO,
        loss=_ours("m2po"),
    ),
    "dual_clip": Algorithm(
        "PPO's clip, bounded below for negative advantages",
        "arXiv:1912.09729",
        _GRPO,
        loss=_ours("dual_clip"),
    ),
    "decoupled_ppo": Algorithm(
        "clipped around the policy of the step's start, weighted by its ratio to the one that sampled",
        "arXiv:2505.24298",
        _GRPO,
        loss=_ours("decoupled_ppo"),
    ),
    "loglinear_ppo": Algorithm(
        "decoupled, with the proximal policy interpolated by staleness instead of computed",
        "arXiv:2512.06547",
        _GRPO,
        loss=_ours("loglinear_ppo"),
    ),
    "sequence_masking": Algorithm(
        "rows with negative advantages that have drifted far are left out",
        "arXiv:2512.02556",
        _GRPO,
        loss=_ours("sequence_masking"),
    ),
    "importance_sampling": Algorithm(
        "policy gradient with truncated importance weights",
        "doi:10.1198/106186008X320456",
        _GRPO,
        loss=_ours("importance_sampling"),
    ),
    "multi_step_grpo": Algorithm(
        "every turn gets its rollout's group-relative advantage",
        "arXiv:2402.03300",
        [{"step_wise_advantage_mapper": {}}],
        _TOKEN_MEAN,
    ),
    "gigpo": Algorithm(
        "group-relative advantages of rollouts and of the states they share",
        "arXiv:2505.10978",
        [{"gigpo_advantage_mapper": {}}],
        _TOKEN_MEAN,
    ),
    "maxrl": Algorithm(
        "divides by the group's pass rate: maximum likelihood in the limit",
        "arXiv:2602.02710",
        [{"maxrl_advantage_mapper": {}}],
        loss=_ours("policy_gradient"),
    ),
    "pass_at_k": Algorithm(
        "the advantage of a try in a group whose best answer counts",
        "arXiv:2508.10751",
        [{"pass_at_k_advantage_mapper": {"k": 4}}],
        _TOKEN_MEAN,
        least_group=5,
    ),
    "lite_ppo": Algorithm(
        "the group's mean and the batch's std",
        "arXiv:2508.08221",
        _REWARD,
        _TOKEN_MEAN,
        batch_ops=[{"batch_std": {}}],
    ),
    "ppo": Algorithm(
        "a critic, generalised advantage estimation, clipped ratios and values",
        "arXiv:1707.06347",
        _REWARD,
        _TOKEN_MEAN,
        batch_ops=[{"gae": {"gamma": 1.0, "lam": 0.95}}, {"whiten": {}}],
        critic={},
        group_size=1,
        least_group=1,
    ),
    "a2c": Algorithm(
        "PPO without the clipped ratio",
        "arXiv:1602.01783",
        _REWARD,
        loss=_ours("policy_gradient"),
        batch_ops=[{"gae": {"gamma": 1.0, "lam": 0.95}}, {"whiten": {}}],
        critic={},
        group_size=1,
        least_group=1,
    ),
    "raft": Algorithm(
        "supervised steps on the rollouts that were rewarded",
        "arXiv:2304.06767",
        _REWARD,
        loss=_ours("raft"),
        least_group=1,
    ),
    "mix": Algorithm(
        "GRPO on rollouts and likelihood of experts' answers in one step",
        "arXiv:2505.17826",
        _GRPO,
        loss=_ours("mix"),
        sampler={"use": "mix", "args": {"parts": {"own": 7, "experts": 1}, "max_reuse": 1000}},
        needs=frozenset({"experts"}),
    ),
    "chord": Algorithm(
        "mix with a schedule, and weights that spare what the policy knows",
        "arXiv:2508.11408",
        _GRPO,
        loss=_ours("chord"),
        sampler={"use": "mix", "args": {"parts": {"own": 7, "experts": 1}, "max_reuse": 1000}},
        needs=frozenset({"experts"}),
    ),
    "on_policy_distill": Algorithm(
        "the teacher's log-likelihood over the student's as a reward for every token",
        "arXiv:2306.13649",
        _REWARD,
        _TOKEN_MEAN,
        batch_ops=[{"distill": {}}],
        group_size=1,
        least_group=1,
        needs=frozenset({"teacher"}),
    ),
    "jsd": Algorithm(
        "distillation by the generalised Jensen-Shannon divergence",
        "arXiv:2306.13649",
        _REWARD,
        _TOKEN_MEAN,
        batch_ops=[{"jsd": {"beta": 0.5}}],
        group_size=1,
        least_group=1,
        needs=frozenset({"teacher"}),
    ),
}
"""The built-in presets."""


NOT_IMPORTED = Algorithm("a preset of your own, which was not imported", "", (), least_group=1)
"""Stands for a preset at an import path while a recipe is only checked."""


def find_algorithm(name: str, *, check_only: bool = False) -> Algorithm:
    """The preset called `name`, or the one at the import path `name`.

    Args: check_only: do not import it; only the form of its path is checked.
    Raises: UnknownComponentError; RecipeError when the object at that import path is no Algorithm.
    """
    if check_only and ":" in name:
        if not is_import_path(name):
            raise UnknownComponentError(f"algorithm '{name}' is no import path; write 'package.module:NAME'.")
        return NOT_IMPORTED
    found = lookup(name, ALGORITHMS, "algorithm")
    if not isinstance(found, Algorithm):
        raise RecipeError(
            f"algorithm '{name}' is {type(found).__name__}, not a rft_data.recipe.algorithms.Algorithm."
        )
    return found
