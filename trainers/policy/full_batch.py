"""The rows of a lease as the batch of one optimizer step: padded, dealt, the padding undone by a factor."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import torch
from trl import GRPOConfig

from rft_data.core.errors import TrainingError
from trainers.policy.collate import NO_VERSION, collate
from trainers.policy.micro_batches import (
    MEAN_OF_ROW_MEANS,
    MEAN_OVER_ROWS,
    SUM_OVER_TOKENS,
    allowed_dealing,
    deal,
)
from trainers.policy.objective import TRLS, Objective
from trainers.policy.token_values import ROW


def padding_factor(args: GRPOConfig, rows: int, padded: int) -> float:
    """The factor of the advantages with which padding `rows` rows to `padded` changes no gradient.

    Losses that divide by the batch's sampled tokens ignore padding; those that average over rows are
    linear in the advantage, so padded / rows undoes the larger divisor. It is exact for dense models.

    Raises: TrainingError when no factor makes the padded gradient equal to the unpadded one.
    """
    if rows == padded:
        return 1.0
    obstacle = _padding_obstacle(args)
    if obstacle:
        raise TrainingError(
            f"the lease has {rows} rows and the trainer's batch {padded}; {obstacle}, so padding would "
            "change the gradient. Use trl.loss_type 'dapo', or keep groups whole so that leases are full."
        )
    return padded / rows if args.loss_type in MEAN_OVER_ROWS else 1.0


def _padding_obstacle(args: GRPOConfig) -> str:
    """The reason why padding cannot be undone with these options; empty when it can."""
    mean_over_rows = args.loss_type in MEAN_OVER_ROWS
    if mean_over_rows and args.beta != 0.0:
        return f"loss_type '{args.loss_type}' averages the KL term over rows"
    if args.generation_batch_size == args.per_device_train_batch_size:  # one micro-batch, one process
        return ""
    if not mean_over_rows and args.loss_type not in SUM_OVER_TOKENS:
        return f"loss_type '{args.loss_type}' averages over the tokens of each micro-batch"
    if args.entropy_coef != 0.0 or args.use_adaptive_entropy or args.top_entropy_quantile < 1.0:
        return "the entropy terms average over the tokens of each micro-batch"
    return ""


def rollout_factor(args: GRPOConfig, batch: dict[str, torch.Tensor], rows: int) -> torch.Tensor:
    """(R,) factors of the advantages with which losses that average over rows average over rollouts.

    Those that divide by sampled tokens need none: each token is trained on in one row.

    Raises: TrainingError where the loss has a term that the advantages do not multiply.
    """
    ones = torch.ones_like(batch["rollout_share"])
    if args.loss_type not in MEAN_OVER_ROWS:
        return ones
    rollouts = int(batch["num_rollouts_in_batch"])
    if args.beta != 0.0:
        raise TrainingError(
            f"the lease has {rows} rows of {rollouts} rollouts, and loss_type '{args.loss_type}' averages "
            "the KL term over rows, so rollouts of several rows would weigh more than others. Use "
            "trl.loss_type 'dapo', or 'kl' in place of trl.beta."
        )
    share = batch["rollout_share"] if args.loss_type in MEAN_OF_ROW_MEANS else ones
    return share * (rows / rollouts)


def full_batch(
    table: pa.Table, args: GRPOConfig, pad_id: int, objective: Objective = TRLS, version: int | None = None
) -> dict[str, torch.Tensor]:
    """The batch of one optimizer step, in the form TRL's loss reads, from the rows of its lease.

    A lease in which every row is masked gives a step without a gradient. A lease with more rows than
    groups_per_step x group_size (several rows a rollout) gives a larger batch with the same number of
    micro-batches.

    Args: version: the trainer's policy version; None: the newest version of the rows.
    Returns: the tensors of `collate` and `deal`; `versions_behind` (R,), the policy versions between a row
        and the trainer, which after a resume may be too high but never too low; `row` (R,), its place in
        the lease; and `advantage_factor`, 0-dim or (R,), with which padding changes no loss of TRL's and a
        rollout of several rows counts as one.
    Raises: RowError for a row that cannot be trained on; TrainingError when the rows are too
        few for this loss, or hold no token to train on though not all are masked.
    """
    experts = "experts" in objective.needs
    full = args.generation_batch_size
    rows = max(1, -(-table.num_rows // full)) * full
    batch = collate(table, rows=rows, pad_id=pad_id, experts=experts)
    if batch["num_items_in_batch"] == 0 and not _all_masked(table):
        raise TrainingError(
            f"none of the lease's {table.num_rows} rows has a sampled token (action_mask 1 after the "
            "prompt); drop such rows with an operator before they are leased."
        )
    factor = padding_factor(args, table.num_rows, rows) if objective.loss is None else 1.0
    batch["advantage_factor"] = torch.tensor(factor)
    if objective.loss is None and int(batch["num_rollouts_in_batch"]) < table.num_rows:
        batch["advantage_factor"] = factor * rollout_factor(args, batch, table.num_rows)
    oldest = batch["version_min"]
    newest = oldest.max() if version is None else version
    batch["versions_behind"] = torch.where(oldest == NO_VERSION, 0, newest - oldest).clamp(min=0)
    batch[ROW] = torch.arange(rows)
    dealing = allowed_dealing(args, own_loss=objective.loss is not None)
    accumulate, ranks = args.gradient_accumulation_steps, args.world_size
    return batch | deal(batch, dealing, micro_batches=accumulate, ranks=ranks, seed=args.seed)


def _all_masked(table: pa.Table) -> bool:
    if "masked" not in table.column_names:
        return False
    masked: bool = pc.all(pc.fill_null(table.column("masked"), False)).as_py()
    return masked
