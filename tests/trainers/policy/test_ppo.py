"""PPO and A2C: first-step gradients against float64 loops, exact resume, warm-up, and that they learn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from rft_data.core.errors import RecipeError, ResumeError
from rft_data.core.protocols import LeasedBatch
from trainers.models.weights import load_model
from trainers.policy.critic import CRITIC_FOLDER, critic_plan
from trainers.policy.experience_grpo import ExperienceGRPOTrainer
from trainers.policy.full_batch import full_batch
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.grpo_config import grpo_config
from trainers.policy.objective import make_objective
from trainers.policy.off_policy import OffPolicy
from trainers.policy.plan import GrpoPlan, Limits

Rows = Callable[..., pa.Table]
Leased = Callable[[pa.Table, int], LeasedBatch]
Gradient = dict[str, torch.Tensor]
GAE = {"gae": {"gamma": 0.9, "lam": 0.8}}
PPO: dict[str, Any] = {"batch_ops": [GAE, "whiten"], "critic": {"coef": 0.3}}
A2C: dict[str, Any] = {**PPO, "loss": {"use": "policy_gradient"}}
KL_IN_REWARD: dict[str, Any] = {**PPO, "batch_ops": [{"kl_penalty": {"coef": 0.2}}, GAE, "whiten"]}
KL_IN_LOSS: dict[str, Any] = {**PPO, "kl": {"coef": 0.2, "estimator": "k2"}}
BASE = {"learning_rate": 1e-3, "max_grad_norm": 0.0}
KINDS = pytest.mark.parametrize("use", ["shared", "separate"])


def with_critic(settings: Mapping[str, Any], use: str, **more: Any) -> dict[str, Any]:
    return {**settings, "critic": {**settings["critic"], "use": use, **more}}


# --- gradients ---------------------------------------------------------------------------------------


class Capture(TrainerCallback):
    """Keeps the gradients that the optimizer is about to use."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.policy = {name: p.grad.clone() for name, p in kwargs["model"].named_parameters()}
        self.critic = [p.grad.clone() for p in self.trainer.critic.model.parameters()]

    trainer: ExperienceGRPOTrainer


def moved_away(model: torch.nn.Module) -> None:
    """Away from the reference model."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.05)


def trained_gradients(
    model_path: Path, table: pa.Table, rows: int, settings: dict[str, Any], options: dict[str, Any], out: Path
) -> Capture:
    """The gradients of the trainer's first step on `table` in a batch of `rows` rows."""
    options = {**BASE, **options}
    config = grpo_config(out, steps=1, rows_per_step=rows, options=options, seed=0)
    objective = make_objective(settings, options, config)
    model = load_model(model_path)
    moved_away(model)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    batch = full_batch(table, config, tokenizer.pad_token_id, objective)
    capture = Capture()
    trainer = ExperienceGRPOTrainer(
        model, config, tokenizer, lambda: batch, OffPolicy(), [capture], objective
    )
    plan = critic_plan(settings["critic"], objective.batch_ops, model_path, None, {})
    assert plan is not None
    trainer.train_critic(plan)
    assert trainer.critic is not None
    with torch.no_grad():
        trainer.critic.model.head.weight.copy_(head_weight())
        trainer.critic.model.head.bias.fill_(0.25)
    capture.trainer = trainer
    trainer.train()
    return capture


def head_weight() -> torch.Tensor:
    return 0.1 * torch.randn(1, 64, generator=torch.Generator().manual_seed(9))


def paper_gradients(
    model_path: Path, table: pa.Table, settings: dict[str, Any]
) -> tuple[Gradient, list[torch.Tensor]]:
    """The same gradients from the papers' formulas, one un-padded row at a time, in float64."""
    policy, reference = (AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64) for _ in "ab")
    moved_away(policy)
    shared = settings["critic"]["use"] == "shared"
    backbone = policy.model if shared else AutoModel.from_pretrained(model_path, dtype=torch.float64)
    weight = head_weight().double().requires_grad_()
    bias = torch.full((1,), 0.25, dtype=torch.float64, requires_grad=True)
    news, olds, refs, values, rewards = [], [], [], [], []
    for row in table.to_pylist():
        ids = torch.tensor([row["token_ids"]])
        acted = torch.tensor(row["action_mask"])[1:] == 1
        acted[: row["prompt_length"] - 1] = False

        def logprobs(model: Any, ids: torch.Tensor = ids, acted: torch.Tensor = acted) -> torch.Tensor:
            logits = model(input_ids=ids).logits[0, :-1]
            return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0][acted]

        news.append(logprobs(policy))
        refs.append(logprobs(reference).detach())
        olds.append(torch.tensor(row["logprobs"], dtype=torch.float64)[1:][acted])
        hidden = backbone(input_ids=ids).last_hidden_state[0, :-1][acted]
        values.append(hidden @ weight[0] + bias)
        rewards.append(float(row["advantage"][0]))
    advantages, returns = paper_advantages(settings, rewards, values, olds, refs)
    terms, count = [], sum(map(len, news))
    for new, old, ref, advantage, value, target in zip(
        news, olds, refs, advantages, values, returns, strict=True
    ):
        ratio = (new - old).exp()
        clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        loss = -new * advantage if "loss" in settings else -clipped
        if "kl" in settings:
            loss = loss + settings["kl"]["coef"] * (new - ref).square() / 2
        terms.append((loss + settings["critic"]["coef"] * (value - target).square() / 2).sum())
    (sum(terms) / count).backward()
    critic = [weight.grad, bias.grad]
    if not shared:
        critic = [p.grad for p in backbone.parameters()] + critic
    return {name: p.grad for name, p in policy.named_parameters()}, critic


def paper_advantages(
    settings: dict[str, Any],
    rewards: list[float],
    values: list[torch.Tensor],
    olds: list[torch.Tensor],
    refs: list[torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Whitened advantages and returns: arXiv:1506.02438, equation 16, by its recursion."""
    gamma, lam = 0.9, 0.8
    penalty = 0.2 if settings is KL_IN_REWARD or "kl_penalty" in str(settings) else 0.0
    advantages, returns = [], []
    for reward, value, old, ref in zip(rewards, values, olds, refs, strict=True):
        v = value.tolist()
        token_rewards = [-penalty * float(o - r) for o, r in zip(old, ref, strict=True)]
        if v:
            token_rewards[-1] += reward
        row = [0.0] * len(v)
        for t in reversed(range(len(v))):
            last = t == len(v) - 1
            error = token_rewards[t] + (0.0 if last else gamma * v[t + 1]) - v[t]
            row[t] = error + (0.0 if last else gamma * lam * row[t + 1])
        advantages.append(row)
        returns.append(torch.tensor([a + b for a, b in zip(row, v, strict=True)], dtype=torch.float64))
    flat = [a for row in advantages for a in row]
    mean = math.fsum(flat) / len(flat)
    std = math.sqrt(math.fsum((a - mean) ** 2 for a in flat) / (len(flat) - 1) + 1e-8)
    return [torch.tensor([(a - mean) / std for a in row], dtype=torch.float64) for row in advantages], returns


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize(
    ("settings", "rows", "options"),
    [
        (PPO, 8, {}),
        (PPO, 12, {"gradient_accumulation_steps": 2}),
        (A2C, 8, {"gradient_accumulation_steps": 2}),
        (KL_IN_REWARD, 8, {}),
        (KL_IN_LOSS, 8, {"gradient_accumulation_steps": 4}),
    ],
    ids=["ppo", "ppo-ragged", "a2c", "kl-in-reward", "kl-in-loss"],
)
def test_first_steps_gradients_equal_the_papers(
    model_path: Path,
    tmp_path: Path,
    rows_table: Rows,
    use: str,
    settings: dict[str, Any],
    rows: int,
    options: dict[str, Any],
) -> None:
    table = rows_table(1, 8, empty_rows=1)
    settings = with_critic(settings, use)
    got = trained_gradients(model_path, table, rows, settings, options, tmp_path)
    policy, critic = paper_gradients(model_path, table, settings)
    ours = {name: grad for name, grad in got.policy.items() if "value_head" not in name}
    assert ours.keys() == policy.keys()
    assert relative(list(ours.values()), [policy[name] for name in ours]) < 1e-5
    assert relative(got.critic, critic) < 1e-5


def relative(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """|got - want| / |want| over all tensors."""
    pairs = list(zip(got, want, strict=True))
    off = math.fsum(float((g.double() - w).square().sum()) for g, w in pairs)
    return math.sqrt(off / math.fsum(float(w.square().sum()) for _, w in pairs))


# --- training ----------------------------------------------------------------------------------------


def trainer(model_path: Path, out: Path, settings: dict[str, Any], **kwargs: Any) -> GrpoTrainer:
    options = {"learning_rate": 1e-3, "gradient_accumulation_steps": 2, **kwargs.pop("options", {})}
    steps = kwargs.pop("steps", 4)
    limits = Limits(threads=1)
    plan = GrpoPlan(model_path, out, steps, 8, options, 0, objective=settings, limits=limits, **kwargs)
    return GrpoTrainer(plan)


def weights(of: GrpoTrainer, directory: Path) -> dict[str, torch.Tensor]:
    directory.mkdir()
    of.save_weights(directory)
    return load_file(directory / "model.safetensors")


def critic_weights(of: GrpoTrainer) -> list[torch.Tensor]:
    critic = of._trainer.critic
    assert critic is not None
    return [p.detach().clone() for p in critic.model.parameters()]


def same(a: Mapping[Any, torch.Tensor], b: Mapping[Any, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def moved(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return not all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.slow
@KINDS
def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased, use: str
) -> None:
    settings = with_critic(KL_IN_REWARD, use, learning_rate=5e-3)
    batches = [leased(rows_table(seed, 8), seed) for seed in range(4)]
    with closing(trainer(model_path, tmp_path / "straight", settings)) as straight:
        metrics = [straight.step(batch) for batch in batches]
        want, critic_wanted = weights(straight, tmp_path / "want"), critic_weights(straight)
    with closing(trainer(model_path, tmp_path / "parts", settings)) as first:
        first.step(batches[0])
        first.step(batches[1], checkpoint=True)
        at_checkpoint, checkpoint = critic_weights(first), first.checkpoint_dir(2)
    with closing(trainer(model_path, tmp_path / "parts", settings, resume_from=checkpoint)) as second:
        assert not moved(critic_weights(second), at_checkpoint)
        resumed = [second.step(batch) for batch in batches[2:]]
        assert same(weights(second, tmp_path / "got"), want)
        assert not moved(critic_weights(second), critic_wanted)
        assert moved(critic_weights(second), at_checkpoint)
    names = ("loss", "critic/loss", "critic/explained_variance", "critic/value", "grad_norm", "entropy")
    for name in names:
        assert [m[name] for m in resumed] == [m[name] for m in metrics[2:]]


@pytest.mark.slow
def test_checkpoint_without_a_critic_is_refused(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    plain = {"batch_ops": ["whiten"]}
    with closing(trainer(model_path, tmp_path, plain)) as first:
        first.step(leased(rows_table(0, 8), 0), checkpoint=True)
        checkpoint = first.checkpoint_dir(1)
    assert not (checkpoint / CRITIC_FOLDER).exists()
    for use in ("shared", "separate"):
        with pytest.raises(ResumeError, match="written without a critic"):
            trainer(model_path, tmp_path, with_critic(PPO, use), resume_from=checkpoint)


def test_operators_that_read_values_want_a_critic(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"add 'critic: \{\}'"):
        trainer(model_path, tmp_path, {"batch_ops": ["gae"]})


@pytest.mark.slow
@KINDS
def test_warm_up_trains_the_critic_alone(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased, use: str
) -> None:
    settings = with_critic(PPO, use, learning_rate=1e-2, warmup_steps=2)
    before = load_file(model_path / "model.safetensors")
    with closing(trainer(model_path, tmp_path / "run", settings, steps=3)) as ppo:
        critics = [critic_weights(ppo)]
        for step in range(3):
            ppo.step(leased(rows_table(step, 8), step))
            critics.append(critic_weights(ppo))
            assert moved(critics[-1], critics[-2])
            assert same(weights(ppo, tmp_path / str(step)), before) == (step < 2)


@pytest.mark.slow
@KINDS
def test_critic_learns_returns_it_can_know(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased, use: str
) -> None:
    settings = with_critic(PPO, use, learning_rate=1e-2, coef=1.0, clip=None)
    batch = leased(rows_table(0, 8), 0)
    with closing(trainer(model_path, tmp_path / "run", settings, steps=25)) as ppo:
        metrics = [ppo.step(batch) for _ in range(25)]
    assert metrics[-1]["critic/loss"] < 0.5 * metrics[0]["critic/loss"]
    assert metrics[-1]["critic/explained_variance"] > metrics[0]["critic/explained_variance"] + 0.3


@pytest.mark.slow
def test_separate_critics_gradient_is_cleared_after_each_step(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    with closing(trainer(model_path, tmp_path, with_critic(PPO, "separate"))) as ppo:
        ppo.step(leased(rows_table(0, 8), 0))
        assert all(p.grad is None for p in ppo._trainer.critic.model.parameters())


# --- learning ----------------------------------------------------------------------------------------

WANTED = 40
"""Token ids below it are rewarded: about an eighth of the tiny model's vocabulary."""


@torch.no_grad()
def rollouts(model: Any, seed: int, rows: int = 16, tokens: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    """Random prompts of 3 tokens with sampled completions, and the logprobs of these, nats."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 100, (rows, 3), generator=generator)
    logprobs = torch.zeros(rows, 3)
    for _ in range(tokens):
        scores = type(model).forward(model, input_ids=ids).logits[:, -1].log_softmax(-1)
        token = torch.multinomial(scores.exp(), 1, generator=generator)
        ids = torch.cat([ids, token], dim=1)
        logprobs = torch.cat([logprobs, scores.gather(1, token)], dim=1)
    return ids, logprobs


def lease_of(rows_table: Rows, ids: torch.Tensor, logprobs: torch.Tensor) -> pa.Table:
    """The rollouts as leased rows; the advantage is the reward, as `reward_advantage_mapper` has it."""
    shares = (ids[:, 3:] < WANTED).float().mean(dim=1).tolist()
    template = rows_table(0, len(ids))
    rows = [
        {
            **row,
            "prompt_length": 3,
            "token_ids": ids[i].tolist(),
            "action_mask": [0] * 3 + [1] * (ids.shape[1] - 3),
            "logprobs": logprobs[i].tolist(),
            "advantage": [shares[i]],
            "reward": shares[i],
        }
        for i, row in enumerate(template.to_pylist())
    ]
    return pa.Table.from_pylist(rows, schema=template.schema)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "use"),
    [(PPO, "shared"), (PPO, "separate"), (A2C, "shared")],
    ids=["ppo-shared", "ppo-separate", "a2c-shared"],
)
def test_policy_learns_to_say_what_is_rewarded(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased, settings: dict[str, Any], use: str
) -> None:
    settings = with_critic(settings, use, learning_rate=1e-2)
    steps = 25
    options = {"learning_rate": 1e-2, "lr_scheduler_type": "constant"}
    rewards = []
    limits = Limits(threads=1)
    plan = GrpoPlan(model_path, tmp_path, steps, 16, options, 0, objective=settings, limits=limits)
    with closing(GrpoTrainer(plan)) as learner:
        for step in range(steps):
            table = lease_of(rows_table, *rollouts(learner._trainer.model, step))
            rewards.append(learner.step(leased(table, step))["reward"])
    start, end = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert start < 0.25
    assert end > 0.6
