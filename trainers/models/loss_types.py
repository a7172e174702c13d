"""The values of `trl.loss_type` by the kind of a stage; no library is loaded for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import suggest

GRPO_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
DPO_LOSSES = (
    *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot"),
    *("aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
)
"""Several of them, with `loss_weights`, are a mixture."""
KTO_LOSSES = ("kto", "apo_zero_unpaired")
"""The second has no KL term."""

LOSS_TYPES: Mapping[str, Sequence[str]] = {"rl": GRPO_LOSSES, "dpo": DPO_LOSSES, "kto": KTO_LOSSES}
"""Loss types by the kind of a recipe's stage; other kinds have a fixed loss, or leave it to TRL."""


def unknown_loss(kind: str, given: object) -> str:
    """The mistake in a `loss_type`, one name or a list of them; empty if there is none."""
    known = LOSS_TYPES.get(kind, ())
    names = given if isinstance(given, list | tuple) else [given]
    unknown = [str(name) for name in names if name not in known]
    if not known or not unknown:
        return ""
    return f"'{unknown[0]}' is not known;{suggest(unknown[0], known)} there are {', '.join(known)}"


def check_loss(kind: str, given: object) -> None:
    """Raises: RecipeError for a loss type that TRL does not have."""
    if problem := unknown_loss(kind, given):
        raise RecipeError(f"trl.loss_type {problem}.")
