"""The first step's gradient against un-padded float64 losses written from the papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from rft_data.core.errors import TrainingError
from trainers.models.weights import load_model
from trainers.policy.experience_grpo import ExperienceGRPOTrainer
from trainers.policy.full_batch import full_batch
from trainers.policy.grpo_config import grpo_config
from trainers.policy.off_policy import OffPolicy

Rows = Callable[..., pa.Table]
Replace = Callable[[pa.Table, str, Sequence[Any]], pa.Table]
Gradient = dict[str, torch.Tensor]
PLAIN = OffPolicy()
BASE = {"learning_rate": 1e-3, "max_grad_norm": 0.0}


class CaptureGradient(TrainerCallback):
    """Keeps the gradient that the optimizer is about to use."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.gradient = {name: p.grad.clone() for name, p in kwargs["model"].named_parameters()}


def trl_gradient(
    model_path: Path,
    table: pa.Table,
    rows: int,
    options: dict[str, Any],
    out: Path,
    off_policy: OffPolicy = PLAIN,
) -> Gradient:
    """The gradient of the trainer's first step on `table` in a batch of `rows` rows."""
    config = grpo_config(out, steps=1, rows_per_step=rows, options={**BASE, **options}, seed=0)
    model = load_model(model_path)
    with torch.no_grad():
        for p in model.parameters():  # away from the reference model, so that the KL term has a gradient
            p.mul_(1.05)
    capture = CaptureGradient()
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    batch = full_batch(table, config, tokenizer.pad_token_id)
    ExperienceGRPOTrainer(model, config, tokenizer, lambda: batch, off_policy, [capture]).train()
    return capture.gradient


def paper_gradient(
    model_path: Path,
    table: pa.Table,
    loss_type: str,
    options: dict[str, Any],
    off_policy: OffPolicy = PLAIN,
) -> Gradient:
    """The same gradient from the papers' formulas, one un-padded row at a time, in float64.

    dapo: arXiv:2503.14476, equation 8 (mean over all tokens of the batch, `epsilon_high`).
    grpo: arXiv:2402.03300, equation 3 (mean over a row's tokens, then over rows) and the KL estimator
    of equation 4.
    recompute: arXiv:2505.24298, equation 5: the ratio is to the policy at the start of the step, and
    importance weights of that policy over the sampling one multiply the clipped terms.
    """
    policy = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    reference = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(1.05)
    low, high = options.get("epsilon", 0.2), options.get("epsilon_high", options.get("epsilon", 0.2))
    beta, temperature = options.get("beta", 0.0), options.get("temperature", 1.0)
    sums, counts = [], []
    for row in table.to_pylist():
        ids = torch.tensor([row["token_ids"]])
        acted = torch.tensor(row["action_mask"])[1:] == 1
        acted[: row["prompt_length"] - 1] = False
        advantage = torch.tensor(row["advantage"], dtype=torch.float64)
        advantage = advantage.expand(ids.shape[1])[1:][acted]

        def logprob(model: Any, ids: torch.Tensor = ids, acted: torch.Tensor = acted) -> torch.Tensor:
            logits = model(input_ids=ids).logits[0, :-1] / temperature
            return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0][acted]

        new = logprob(policy)
        old = torch.tensor(row["logprobs"], dtype=torch.float64)[1:][acted]
        weight = torch.ones(())
        if off_policy.old_logprobs == "recompute":
            weight = paper_weight((new.detach() - old).exp(), off_policy)
            old = new.detach()
        ratio = (new - old).exp()
        terms = weight * torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
        if beta:
            log_ratio = logprob(reference).detach() - new
            terms = terms - beta * (log_ratio.exp() - log_ratio - 1)
        sums.append(terms.sum())
        counts.append(int(acted.sum()))
    if loss_type == "dapo":
        loss = -sum(sums) / sum(counts)
    else:
        loss = -sum(s / max(c, 1) for s, c in zip(sums, counts, strict=True)) / len(sums)
    loss.backward()
    return {name: p.grad for name, p in policy.named_parameters()}


def paper_weight(ratio: torch.Tensor, off_policy: OffPolicy) -> torch.Tensor:
    """Importance weights of one row's sampled tokens from their ratios, policy now over sampling policy."""
    cap = torch.tensor(off_policy.cap, dtype=torch.float64)
    if off_policy.importance == "token_truncated":
        return torch.minimum(ratio, cap)
    if off_policy.importance == "sequence_truncated":
        return torch.minimum(ratio.prod(), cap)
    if off_policy.importance == "masked":
        return torch.where((ratio >= 1 / cap) & (ratio <= cap), ratio, 0.0)
    return torch.ones(())


def relative_difference(got: Gradient, want: Gradient) -> float:
    """L2 norm of the difference over all parameters, relative to the wanted gradient's."""
    assert got.keys() == want.keys()
    difference = sum(((got[n].double() - want[n].double()) ** 2).sum() for n in want)
    size = sum((want[n].double() ** 2).sum() for n in want)
    assert size > 0
    return float((difference / size).sqrt())


@pytest.mark.slow
@pytest.mark.parametrize("per_token", [False, True], ids=["row-advantage", "token-advantage"])
@pytest.mark.parametrize(
    "options",
    [
        {"loss_type": "dapo"},
        {"loss_type": "dapo", "epsilon_high": 0.28, "gradient_accumulation_steps": 2},
        {"loss_type": "dapo", "beta": 0.1, "use_bias_correction_kl": False},
        {"loss_type": "dapo", "temperature": 0.7},
        {"loss_type": "grpo"},
        {"loss_type": "grpo", "epsilon": 0.1, "gradient_accumulation_steps": 4},
        {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": False},
    ],
    ids=lambda o: "-".join(str(v) for v in o.values()),
)
def test_first_gradient_equals_the_papers_loss(
    model_path: Path, tmp_path: Path, options: dict[str, Any], per_token: bool, rows_table: Rows
) -> None:
    table = rows_table(4, 8, per_token=per_token, empty_rows=1)
    got = trl_gradient(model_path, table, 8, options, tmp_path)
    want = paper_gradient(model_path, table, options["loss_type"], options)
    assert relative_difference(got, want) < 1e-5


RECOMPUTED = [
    OffPolicy("recompute", importance, 1.3)
    for importance in ("none", "token_truncated", "sequence_truncated", "masked")
]


@pytest.mark.heavy
@pytest.mark.parametrize("off_policy", RECOMPUTED, ids=lambda o: o.importance)
@pytest.mark.parametrize(
    ("options", "per_token"),
    [
        ({"loss_type": "dapo", "gradient_accumulation_steps": 2}, True),
        ({"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": False}, False),
    ],
    ids=["dapo-token-advantage", "grpo-kl-row-advantage"],
)
def test_first_gradient_equals_the_decoupled_loss(
    model_path: Path,
    tmp_path: Path,
    options: dict[str, Any],
    per_token: bool,
    off_policy: OffPolicy,
    rows_table: Rows,
) -> None:
    table = rows_table(4, 8, per_token=per_token, empty_rows=1)
    got = trl_gradient(model_path, table, 8, options, tmp_path, off_policy)
    want = paper_gradient(model_path, table, options["loss_type"], options, off_policy)
    assert relative_difference(got, want) < 1e-5
    uncorrected = paper_gradient(model_path, table, options["loss_type"], options)
    assert relative_difference(got, uncorrected) > 0.01


@pytest.mark.slow
def test_all_corrections_are_plain_grpo_where_the_rollout_policy_is_the_current_one(
    model_path: Path, tmp_path: Path, rows_table: Rows, replace_column: Replace
) -> None:
    table = rows_table(4, 8, per_token=True)
    policy = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(1.05)
        logprobs = []
        for ids in table.column("token_ids").to_pylist():
            scored = policy(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
            logprobs.append([0.0, *scored.gather(1, torch.tensor(ids)[1:, None])[:, 0].tolist()])
    table = replace_column(table, "logprobs", logprobs)
    want = trl_gradient(model_path, table, 8, {}, tmp_path)
    for off_policy in RECOMPUTED:
        assert relative_difference(trl_gradient(model_path, table, 8, {}, tmp_path, off_policy), want) < 1e-5


@pytest.mark.slow
def test_padding_rows_leave_the_corrected_gradient_unchanged(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table, off_policy = rows_table(5, 6), OffPolicy("recompute", "token_truncated", 1.3)
    want = trl_gradient(model_path, table, 6, {"loss_type": "grpo"}, tmp_path, off_policy)
    got = trl_gradient(model_path, table, 12, {"loss_type": "grpo"}, tmp_path, off_policy)
    assert relative_difference(got, want) < 1e-5


@pytest.mark.slow
def test_first_gradient_depends_on_the_stored_logprobs(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 8)
    stale = table.set_column(
        table.schema.get_field_index("logprobs"), "logprobs", [[[-5.0] * len(r) for r in table["token_ids"]]]
    )
    fresh = trl_gradient(model_path, table, 8, {}, tmp_path)
    assert relative_difference(trl_gradient(model_path, stale, 8, {}, tmp_path), fresh) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"loss_type": "dapo"}, {"loss_type": "grpo"}, {"loss_type": "dapo", "gradient_accumulation_steps": 2}],
    ids=lambda o: "-".join(str(v) for v in o.values()),
)
@pytest.mark.parametrize("per_token", [False, True], ids=["row-advantage", "token-advantage"])
def test_masked_rows_leave_their_tokens_out_of_the_gradient(
    model_path: Path,
    tmp_path: Path,
    options: dict[str, Any],
    per_token: bool,
    rows_table: Rows,
    replace_column: Replace,
) -> None:
    """As TRL's mask_truncated_completions: the row counts in means over rows, none of its tokens does."""
    table = rows_table(4, 8, per_token=per_token)
    chosen = [True, False, None, False, True, False, False, False]
    masked = table.append_column("masked", pa.array(chosen))
    got = trl_gradient(model_path, masked, 8, options, tmp_path)
    left_out = [
        [0] * len(mask) if out else mask
        for mask, out in zip(table["action_mask"].to_pylist(), chosen, strict=True)
    ]
    unsampled = replace_column(table, "action_mask", left_out)
    assert (
        relative_difference(got, paper_gradient(model_path, unsampled, options["loss_type"], options)) < 1e-5
    )
    assert relative_difference(got, trl_gradient(model_path, table, 8, options, tmp_path)) > 0.01


def test_masking_is_what_trl_does_with_truncated_completions(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    """Both masks zeroed, as GRPOTrainer does for mask_truncated_completions, give the same loss inputs."""
    table = rows_table(4, 8)
    masked = table.append_column("masked", pa.array([True] * 3 + [False] * 5))
    config = grpo_config(tmp_path, steps=1, rows_per_step=8, options=BASE, seed=0)
    ours, plain = (full_batch(rows, config, 0) for rows in (masked, table))
    truncated = torch.tensor([True] * 3 + [False] * 5)
    completion_mask = plain["completion_mask"] * (~truncated).unsqueeze(1).int()
    tool_mask = plain["tool_mask"] * (~truncated).unsqueeze(1).int()
    assert torch.equal(ours["completion_mask"], completion_mask)
    assert torch.equal(ours["completion_mask"] * ours["tool_mask"], completion_mask * tool_mask)
    assert ours["num_items_in_batch"] == (completion_mask * tool_mask).sum()


@pytest.mark.slow
def test_a_lease_of_masked_rows_alone_has_no_gradient(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 4).append_column("masked", pa.array([True] * 4))
    gradient = trl_gradient(model_path, table, 4, {}, tmp_path)
    assert all((part == 0).all() for part in gradient.values())


INVARIANT = [
    *({"loss_type": name} for name in ("dapo", "cispo", "vespo", "grpo", "sapo", "dr_grpo", "luspo", "bnpo")),
    *({"loss_type": name, "gradient_accumulation_steps": 3} for name in ("dapo", "cispo", "grpo", "dr_grpo")),
    {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    {"loss_type": "dapo", "beta": 0.1},
    {"loss_type": "bnpo", "beta": 0.1},
    {"loss_type": "dapo", "entropy_coef": 0.1, "top_entropy_quantile": 0.5},
    {"loss_type": "dapo", "off_policy_mask_threshold": 0.05},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", INVARIANT, ids=lambda o: "-".join(str(v) for v in o.values()))
def test_padding_rows_leave_the_gradient_unchanged(
    model_path: Path, tmp_path: Path, options: dict[str, Any], rows_table: Rows
) -> None:
    table = rows_table(5, 6, per_token=True)
    want = trl_gradient(model_path, table, 6, {**options, "gradient_accumulation_steps": 1}, tmp_path)
    got = trl_gradient(model_path, table, 12, options, tmp_path)
    assert relative_difference(got, want) < 1e-5


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"loss_type": "grpo", "beta": 0.1}, "averages the KL term over rows"),
        (
            {"loss_type": "bnpo", "gradient_accumulation_steps": 2},
            "averages over the tokens of each micro-batch",
        ),
        ({"entropy_coef": 0.1, "gradient_accumulation_steps": 2}, "entropy terms average"),
    ],
)
def test_ragged_lease_is_refused_where_padding_would_change_the_gradient(
    model_path: Path, tmp_path: Path, options: dict[str, Any], reason: str, rows_table: Rows
) -> None:
    with pytest.raises(TrainingError, match=f"6 rows and the trainer's batch 12; .*{reason}"):
        trl_gradient(model_path, rows_table(5, 6), 12, options, tmp_path)
