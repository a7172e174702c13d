"""A stage's losses, batch operators and KL terms through TRL's trainer: against float64, without padding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rft_data.core.errors import RecipeError, RowError, UnknownComponentError
from tests.trainers.policy.test_experience_grpo import BASE, CaptureGradient, Gradient, relative_difference
from trainers.models.weights import load_model
from trainers.policy.experience_grpo import ExperienceGRPOTrainer
from trainers.policy.full_batch import full_batch
from trainers.policy.grpo_config import grpo_config
from trainers.policy.kl import KL_ESTIMATORS
from trainers.policy.losses import LOSSES
from trainers.policy.losses.context import LossContext
from trainers.policy.objective import make_objective
from trainers.policy.off_policy import UNCORRECTED, OffPolicy

Rows = Callable[..., pa.Table]
VERSION = 4


def got_gradient(
    model_path: Path,
    table: pa.Table,
    rows: int,
    settings: dict[str, Any],
    options: dict[str, Any],
    out: Path,
    off_policy: OffPolicy = UNCORRECTED,
) -> Gradient:
    """The gradient of the trainer's first step, in a padded batch of `rows` rows."""
    return first_step(model_path, table, rows, settings, options, out, off_policy).gradient


class CaptureStep(CaptureGradient):
    """And what the trainer logs of it."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        self.logs = dict(logs) if "loss" in logs else self.logs


def first_step(
    model_path: Path,
    table: pa.Table,
    rows: int,
    settings: dict[str, Any],
    options: dict[str, Any],
    out: Path,
    off_policy: OffPolicy = UNCORRECTED,
) -> CaptureStep:
    """The trainer's first step on a padded batch of `rows` rows."""
    options = {**BASE, **options}
    config = grpo_config(out, steps=1, rows_per_step=rows, options=options, seed=0)
    objective = make_objective(settings, options, config)
    model = moved(load_model(model_path))
    capture = CaptureStep()
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    batch = full_batch(table, config, tokenizer.pad_token_id, objective, VERSION)
    ExperienceGRPOTrainer(model, config, tokenizer, lambda: batch, off_policy, [capture], objective).train()
    return capture


def moved(model: Any) -> Any:
    """Away from the reference, so that KL terms have a gradient."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.05)
    return model


def contexts(policy: Any, reference: Any, table: pa.Table) -> list[LossContext]:
    """One context for each row, un-padded, in float64."""
    made = []
    rows = table.to_pylist()
    trained = [sum(row["action_mask"][row["prompt_length"] :]) for row in rows]
    of_experts = sum(n for n, row in zip(trained, rows, strict=True) if row["logprobs"] is None)
    for row in rows:
        start = row["prompt_length"]
        ids = torch.tensor([row["token_ids"]])
        if len(row["token_ids"]) == start:
            continue
        logprob, entropy = scored(policy, ids, start)
        expert = row["logprobs"] is None
        mask = torch.tensor([row["action_mask"][start:]], dtype=torch.float64)
        stored = [0.0] * ids.shape[1] if expert else row["logprobs"]
        sampled = torch.tensor([stored[start:]], dtype=torch.float64) * mask
        advantage = np.broadcast_to(np.array(row["advantage"]), ids.shape[1])[start:].copy()
        made.append(
            LossContext(
                logprobs=logprob * mask,
                old=sampled,
                sampled=sampled,
                advantages=torch.tensor(advantage[None], dtype=torch.float64) * mask,
                mask=mask,
                entropies=entropy,
                is_expert=torch.tensor([expert]),
                ref=scored(reference, ids, start)[0].detach() * mask,
                prox=logprob.detach() * mask,
                rewards=torch.tensor([row["reward"]]),
                versions_behind=torch.tensor([0 if expert else VERSION - row["version_min"]]),
                expert_share=torch.tensor(of_experts / sum(trained), dtype=torch.float64),
            )
        )
    return made


def scored(model: Any, ids: torch.Tensor, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of the completion and entropies where it was sampled, each (1, C), nats."""
    logs = model(ids).logits[:, start - 1 : -1].log_softmax(-1)
    return logs.gather(2, ids[:, start:, None])[..., 0], -(logs.exp() * logs).sum(-1)


def wanted_gradient(
    model_path: Path, table: pa.Table, terms: Callable[[LossContext], torch.Tensor], kind: str = "token_mean"
) -> Gradient:
    """The same from the rows one by one: `terms` (1, C) of a row, reduced over the whole table."""
    policy = moved(AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64))
    reference = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    found = contexts(policy, reference, table)
    sums = [(terms(context) * context.mask).sum() for context in found]
    counts = [float(context.mask.sum()) for context in found]
    members = table["member"].to_pylist() if "member" in table.column_names else range(table.num_rows)
    rollouts = list(zip(table["group_id"].to_pylist(), members, strict=True))
    # rows without a completion are the last ones, and have no context
    tokens = {one: sum(c for c, of in zip(counts, rollouts, strict=False) if of == one) for one in rollouts}
    if kind == "token_mean":
        loss = sum(sums) / sum(counts)
    elif kind == "row_mean":
        loss = sum(s / max(tokens[of], 1) for s, of in zip(sums, rollouts, strict=False)) / len(tokens)
    else:
        loss = sum(sums) / len(tokens)
    loss.backward()
    return {name: p.grad for name, p in policy.named_parameters()}


def with_forks(table: pa.Table) -> pa.Table:
    """Both rows of every other group are one rollout."""
    members = [i % 2 if i // 2 % 2 else 0 for i in range(table.num_rows)]
    return table.append_column("member", pa.array(members, pa.int64()))


def with_experts(table: pa.Table, places: list[int]) -> pa.Table:
    """Some rows as an expert's: without logprobs, advantage 0."""
    rows = table.to_pylist()
    for place in places:
        rows[place] |= {"logprobs": None, "advantage": [0.0], "version_min": None}
        rows[place]["action_mask"] = [
            int(i >= rows[place]["prompt_length"]) for i in range(len(rows[place]["token_ids"]))
        ]
    return pa.Table.from_pylist(rows, schema=table.schema)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"m2po"}))  # which looks at a micro-batch together
def test_first_gradient_of_every_loss_equals_the_rows_one_by_one(
    name: str, model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 7, per_token=True, empty_rows=1)
    loss = LOSSES[name]
    if "expert_share" in loss.needs:
        table = with_experts(table, [1, 4])
    settings = {"loss": {"use": name, "args": {}}}
    got = got_gradient(model_path, table, 12, settings, {"gradient_accumulation_steps": 3}, tmp_path)
    want = wanted_gradient(model_path, table, loss.function, loss.aggregation)
    assert relative_difference(got, want) < 1e-5


def measuring(context: LossContext) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return -context.logprobs * context.advantages, {"surprise": -context.logprobs}


@pytest.mark.slow
def test_a_metric_of_a_loss_is_its_mean_over_the_trained_tokens_of_the_step(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 7, per_token=True, empty_rows=1)
    settings = {"loss": {"use": f"{__name__}:measuring"}}
    got = first_step(model_path, table, 12, settings, {"gradient_accumulation_steps": 3}, tmp_path)
    policy = moved(AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64))
    found = contexts(policy, policy, table)
    tokens = sum(float(context.mask.sum()) for context in found)
    want = sum(-(one.logprobs.detach() * one.mask).sum().item() for one in found) / tokens
    assert got.logs["loss/surprise"] == pytest.approx(want, rel=1e-5)
    assert (
        relative_difference(got.gradient, wanted_gradient(model_path, table, lambda c: measuring(c)[0]))
        < 1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("estimator", sorted(set(KL_ESTIMATORS) - {"k1"}))
@pytest.mark.parametrize("own", [True, False])
def test_kl_term_is_added_to_either_kind_of_loss(
    estimator: str, own: bool, model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 7, empty_rows=1)
    settings: dict[str, Any] = {"kl": {"coef": 0.3, "estimator": estimator}}
    options: dict[str, Any] = {"gradient_accumulation_steps": 2}
    if own:
        settings["loss"] = {"use": "ppo_clip", "args": {}}
    else:
        options["loss_type"] = "dapo"
    got = got_gradient(model_path, table, 8, settings, options, tmp_path)
    ppo = LOSSES["ppo_clip"].function

    def terms(context: LossContext) -> torch.Tensor:
        assert context.ref is not None
        return ppo(context) + 0.3 * KL_ESTIMATORS[estimator](context.logprobs, context.ref)

    assert relative_difference(got, wanted_gradient(model_path, table, terms)) < 1e-5
    assert relative_difference(got, wanted_gradient(model_path, table, ppo)) > 1e-3


@pytest.mark.slow
def test_kl_term_with_bias_correction_multiplies_by_the_ratio(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 6)
    settings = {
        "loss": {"use": "ppo_clip"},
        "kl": {"coef": 0.3, "estimator": "k3", "bias_correction": True},
    }
    got = got_gradient(model_path, table, 6, settings, {}, tmp_path)

    def terms(context: LossContext) -> torch.Tensor:
        assert context.ref is not None
        ratio = (context.logprobs - context.old).exp()
        return LOSSES["ppo_clip"].function(context) + 0.3 * ratio * KL_ESTIMATORS["k3"](
            context.logprobs, context.ref
        )

    assert relative_difference(got, wanted_gradient(model_path, table, terms)) < 1e-5


@pytest.mark.slow
def test_entropy_bonus_of_our_losses_is_over_the_tokens_of_the_step(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 7)
    options = {"gradient_accumulation_steps": 2, "entropy_coef": 0.2}
    got = got_gradient(model_path, table, 8, {"loss": {"use": "ppo_clip"}}, options, tmp_path)

    def terms(context: LossContext) -> torch.Tensor:
        return LOSSES["ppo_clip"].function(context) - 0.2 * context.entropies

    assert relative_difference(got, wanted_gradient(model_path, table, terms)) < 1e-5


@pytest.mark.slow
def test_batch_operators_see_the_whole_lease(model_path: Path, tmp_path: Path, rows_table: Rows) -> None:
    table = rows_table(4, 7, empty_rows=1)
    settings = {
        "loss": {"use": "policy_gradient"},
        "batch_ops": [{"returns_to_go": {"gamma": 1.0}}, {"whiten": {}}],
    }
    got = got_gradient(model_path, table, 8, settings, {"gradient_accumulation_steps": 4}, tmp_path)
    rows = table.to_pylist()
    # undiscounted returns of a reward at the end are that reward at every trained token
    counts = [sum(row["action_mask"][row["prompt_length"] :]) for row in rows]
    tokens = np.repeat([row["advantage"][0] for row in rows], counts).astype(np.float64)
    mean, std = tokens.mean(), tokens.std(ddof=1)
    white = table.set_column(
        table.schema.get_field_index("advantage"),
        table.schema.field("advantage"),
        pa.array([[(row["advantage"][0] - mean) / std] for row in rows], pa.list_(pa.float32())),
    )
    want = wanted_gradient(model_path, white, LOSSES["policy_gradient"].function)
    assert relative_difference(got, want) < 1e-5


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"loss": {"use": "pp_clip"}}, {}, "did you mean 'ppo_clip'"),
        ({"loss": {"use": "ppo_clip", "args": {"epsilonlow": 0.1}}}, {}, "epsilon_low"),
        ({"loss": {"use": "ppo_clip"}}, {"loss_type": "cispo"}, "loss_type only change TRL's losses"),
        ({"loss": {"use": "ppo_clip"}}, {"beta": 0.1}, "beta only change TRL's losses"),
        ({"kl": {"coef": 0.1}}, {"beta": 0.1}, "two KL terms"),
        ({"kl": {"coef": 0.1, "estimator": "k1"}}, {}, "k1"),
        ({"kl": {"coef": 0.1, "estimator": "k9"}}, {}, "k9"),
        ({"kl": {"coef": -1.0}}, {}, "kl.coef is -1"),
        ({"batch_ops": [{"witen": {}}]}, {}, "did you mean 'whiten'"),
    ],
)
def test_objective_that_cannot_be_is_refused(
    settings: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = grpo_config(tmp_path, steps=1, rows_per_step=4, options=options, seed=0)
    with pytest.raises((RecipeError, UnknownComponentError), match=message):
        make_objective(settings, options, config)


@pytest.mark.slow
def test_lease_of_more_rows_than_the_batch_has_its_own_gradient(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 11)
    settings = {"loss": {"use": "ppo_clip"}}
    got = got_gradient(model_path, table, 4, settings, {"gradient_accumulation_steps": 2}, tmp_path)
    assert relative_difference(got, wanted_gradient(model_path, table, LOSSES["ppo_clip"].function)) < 1e-5


@pytest.mark.slow
def test_experts_rows_have_no_part_in_kl_and_entropy(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = with_experts(rows_table(4, 6), [0, 3])
    options = {"entropy_coef": 0.2}
    settings = {"loss": {"use": "mix"}, "kl": {"coef": 0.3}}
    got = got_gradient(model_path, table, 6, settings, options, tmp_path)

    def terms(context: LossContext) -> torch.Tensor:
        assert context.ref is not None
        beside = 0.3 * KL_ESTIMATORS["k3"](context.logprobs, context.ref) - 0.2 * context.entropies
        return LOSSES["mix"].function(context) + beside * ~context.is_expert.unsqueeze(1)

    assert relative_difference(got, wanted_gradient(model_path, table, terms)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("old", ["rollout", "recompute"])
def test_bias_correction_is_by_the_ratio_to_the_policy_that_sampled(
    old: str, model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 6)
    settings = {
        "loss": {"use": "policy_gradient"},
        "kl": {"coef": 0.3, "estimator": "k3", "bias_correction": True},
    }
    got = got_gradient(model_path, table, 6, settings, {}, tmp_path, OffPolicy(old))

    def terms(context: LossContext) -> torch.Tensor:
        assert context.ref is not None
        kl = KL_ESTIMATORS["k3"](context.logprobs, context.ref)
        return (
            LOSSES["policy_gradient"].function(context)
            + 0.3 * kl * (context.logprobs - context.sampled).exp()
        )

    assert relative_difference(got, wanted_gradient(model_path, table, terms)) < 1e-5


def test_own_row_without_logprobs_is_never_taken_for_an_experts(
    model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = with_experts(rows_table(4, 6), [2])
    ours = table.set_column(
        table.schema.get_field_index("version_min"),
        table.schema.field("version_min"),
        pa.array([1] * 6, pa.int64()),
    )
    with pytest.raises(RowError, match="experience row 2 has no logprobs"):
        got_gradient(model_path, ours, 6, {"loss": {"use": "raft"}}, {}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo_clip", "dual_clip", "policy_gradient", "opmd"])
def test_gradient_through_the_model_is_that_of_finite_differences(
    name: str, model_path: Path, tmp_path: Path, rows_table: Rows
) -> None:
    table = rows_table(4, 6)
    settings = {"loss": {"use": name}, "kl": {"coef": 0.3}}
    got = got_gradient(model_path, table, 6, settings, {"entropy_coef": 0.2}, tmp_path)
    policy = moved(AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64))
    reference = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    random = {n: torch.randn(p.shape, generator=generator).double() for n, p in policy.named_parameters()}
    sizes = [sum(float((x[n].double() ** 2).sum()) for n in x) ** 0.5 for x in (got, random)]
    way = {n: got[n].double() / sizes[0] + random[n] / sizes[1] for n in got}

    @torch.no_grad()
    def loss_at(distance: float) -> float:
        for n, p in policy.named_parameters():
            p.add_(way[n], alpha=distance)
        found = contexts(policy, reference, table)
        for n, p in policy.named_parameters():
            p.sub_(way[n], alpha=distance)
        total = sum(
            (LOSSES[name].function(c) + 0.3 * KL_ESTIMATORS["k3"](c.logprobs, c.ref) - 0.2 * c.entropies)
            .mul(c.mask)
            .sum()
            for c in found
        )
        return float(total) / sum(float(c.mask.sum()) for c in found)

    step = 1e-3  # parts of the model compute in float32 whatever its dtype: smaller steps drown in that
    slope = (loss_at(step) - loss_at(-step)) / (2 * step)
    along = sum(float((got[n].double() * way[n]).sum()) for n in way)
    assert along == pytest.approx(slope, rel=5e-4)
