"""Policy losses beyond TRL's, by name: pure functions of a LossContext. One of your own imports from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import torch

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import lookup
from trainers.policy.binding import bound
from trainers.policy.losses.clipped import dual_clip, ppo_clip, sequence_masking
from trainers.policy.losses.context import LossContext
from trainers.policy.losses.decoupled import decoupled_ppo, loglinear_ppo
from trainers.policy.losses.loss import Aggregation, Loss
from trainers.policy.losses.m2po import m2po
from trainers.policy.losses.mirror import opmd, sppo
from trainers.policy.losses.mixed import chord, mix
from trainers.policy.losses.policy_gradient import importance_sampling, policy_gradient, topr
from trainers.policy.losses.rec import rec
from trainers.policy.losses.supervised import raft, sft

_CLIPPED = "-min(r A, clip(r, 1-ε_low, 1+ε_high) A)"

__all__ = ["LOSSES", "Loss", "LossContext", "make_loss"]

LOSSES: dict[str, Loss] = {
    "ppo_clip": Loss(ppo_clip, "arXiv:1707.06347", formula=_CLIPPED),
    "dual_clip": Loss(dual_clip, "arXiv:1912.09729", formula="A < 0: min(ppo_clip, -c A); else ppo_clip"),
    "sequence_masking": Loss(
        sequence_masking, "arXiv:2512.02556", formula="ppo_clip · 1[A ≥ 0 or mean_t(log μ - log π) ≤ δ]"
    ),
    "policy_gradient": Loss(policy_gradient, "arXiv:1602.01783", formula="-A log π"),
    "importance_sampling": Loss(
        importance_sampling,
        "doi:10.1198/106186008X320456",
        weighs=True,
        of_sampler=True,
        formula="-sg(min(r, cap)) A log π",
    ),
    "topr": Loss(
        topr,
        "arXiv:2503.14286",
        weighs=True,
        of_sampler=True,
        formula="-sg(A < 0: min(Π r, 1); else 1) A log π",
    ),
    "opmd": Loss(opmd, "arXiv:2505.17826", formula="-A log π / (1+τ); kimi: -A log π + τ/2 d_t Σ_s d_s"),
    "sppo": Loss(sppo, "arXiv:2108.05828", of_sampler=True, formula="-A log clip(r, 1/(1+ε), 1+ε)"),
    "rec": Loss(rec, "arXiv:2509.24203", of_sampler=True, formula="-sg(w 1[r in range]) A log π + k2 d²"),
    "m2po": Loss(
        m2po, "arXiv:2510.01161", of_sampler=True, formula="-M r A, M = 0 on the largest d² until mean d² ≤ τ"
    ),
    "sft": Loss(
        sft,
        "arXiv:2508.05629",
        needs=frozenset({"experts"}),
        weighs=True,
        formula="-sg(w) log π, w = 1, π or π(1-π)",
    ),
    "raft": Loss(
        raft,
        "arXiv:2304.06767",
        needs=frozenset({"rewards", "experts"}),
        weighs=True,
        formula="-sg(w) log π · 1[reward > threshold]",
    ),
    "mix": Loss(
        mix,
        "arXiv:2505.17826",
        needs=frozenset({"experts", "expert_share"}),
        formula="(1-μ) mean ppo_clip + μ mean(-log π*)",
    ),
    "chord": Loss(
        chord,
        "arXiv:2508.11408",
        needs=frozenset({"experts", "expert_share"}),
        formula="(1-μ_step) mean ppo_clip + μ_step mean(-sg(π*(1-π*)) log π*)",
    ),
    "decoupled_ppo": Loss(
        decoupled_ppo,
        "arXiv:2110.00641",
        needs=frozenset({"prox"}),
        weighs=True,
        formula="min(prox/μ, cap) · ppo_clip with r = π/prox",
    ),
    "loglinear_ppo": Loss(
        loglinear_ppo,
        "arXiv:2512.06547",
        needs=frozenset({"versions_behind"}),
        weighs=True,
        formula="decoupled_ppo with log prox = sg(log μ / d + (1 - 1/d) log π)",
    ),
}
"""Every loss of ours, by the name that a stage's `loss: {use}` gives."""


def make_loss(use: str, args: Mapping[str, object]) -> Loss:
    """The loss called `use`, or your own at `package.module:attribute`, with `args` bound and checked.

    Your own is a `Loss`, or a function as a `Loss` holds, which is then reduced as `token_mean` and gets no
    optional field. It is run once on two rows of three tokens.

    Raises: UnknownComponentError for an unknown name or path; RecipeError for arguments that the loss does
        not take, and for a loss that fails.
    """
    found = lookup(use, LOSSES, "loss")
    if not isinstance(found, Loss):
        if not callable(found):
            raise RecipeError(
                f"loss '{use}' is a {type(found).__name__}; wanted a function of a LossContext, or a Loss."
            )
        found = Loss(found, paper=use)
    if found.aggregation not in get_args(Aggregation):
        raise RecipeError(
            f"loss '{use}': its aggregation is '{found.aggregation}'; wanted one of "
            f"{', '.join(get_args(Aggregation))}."
        )
    loss = bound(use, args, {use: found}, "loss")
    _rehearse(use, loss)
    return loss


def _rehearse(use: str, loss: Loss) -> None:
    """Run a loss once on two short rows.

    Raises: RecipeError when it fails, has not (2, 3) terms with a gradient, or has metrics of another shape.
    """
    context = _two_rows(loss.needs)
    try:
        terms, measured = loss.with_metrics(context)
    # A loss may be the user's own code.
    except Exception as err:
        raise RecipeError(
            f"loss '{use}' fails on two rows of three tokens: {type(err).__name__}: {err}"
        ) from err
    if not isinstance(terms, torch.Tensor) or terms.shape != context.mask.shape or not terms.requires_grad:
        got = f"shape {tuple(terms.shape)}" if isinstance(terms, torch.Tensor) else type(terms).__name__
        raise RecipeError(
            f"loss '{use}' returned {got} for two rows of three tokens; wanted one term a token, (2, 3), "
            "that depends on `logprobs`."
        )
    if wrong := [name for name, values in measured.items() if getattr(values, "shape", None) != terms.shape]:
        raise RecipeError(
            f"loss '{use}': its metrics {wrong} are not one number a token; wanted tensors of the shape of "
            "`mask`, (2, 3) for two rows of three tokens."
        )


def _two_rows(needs: frozenset[str]) -> LossContext:
    """A row of ours and an expert's, on policy; an optional field is set only where the loss needs it."""
    logprobs = torch.full((2, 3), -1.0)

    def if_needed(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        return tensor if name in needs else None

    return LossContext(
        logprobs=logprobs.clone().requires_grad_(),
        old=logprobs,
        sampled=torch.tensor([[-1.0], [0.0]]).expand(2, 3),
        advantages=torch.tensor([[1.0, 1.0, -1.0], [0.0, 0.0, 0.0]]),
        mask=torch.ones(2, 3),
        entropies=torch.ones(2, 3, requires_grad=True),
        is_expert=torch.tensor([False, True]),
        ref=if_needed("ref", logprobs),
        prox=if_needed("prox", logprobs),
        rewards=if_needed("rewards", torch.tensor([1.0, torch.nan])),
        versions_behind=if_needed("versions_behind", torch.zeros(2)),
        expert_share=if_needed("expert_share", torch.tensor(0.5)),
    )
