"""Critics by themselves: the value loss, at which tokens values are, what is saved, what is refused."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

from rft_data.core.errors import RecipeError, ResumeError, TrainingError
from trainers.models.weights import load_model, load_tokenizer, write_weights
from trainers.policy.batch_ops import make_batch_ops
from trainers.policy.critic import Critic, critic_plan
from trainers.policy.critics.loss import explained_variance, value_loss
from trainers.policy.critics.own_gradients import OwnGradients
from trainers.policy.critics.separate import SeparateCritic
from trainers.policy.critics.settings import CriticSettings, checked_critic_settings
from trainers.policy.critics.shared import SharedCritic
from trainers.policy.critics.value_head import ValueHead

NUMBER = st.floats(-3, 3, width=32)


@pytest.mark.slow
@given(st.lists(st.tuples(NUMBER, NUMBER, NUMBER), min_size=1, max_size=9), st.sampled_from([None, 0.2, 1.0]))
def test_value_loss_equals_its_formula(tokens: list[tuple[float, float, float]], clip: float | None) -> None:
    values, old, returns = torch.tensor(tokens, dtype=torch.float64).T
    want = []
    for v, o, r in tokens:
        error = (v - r) ** 2
        if clip is not None:
            held = min(max(v, o - clip), o + clip)
            error = max(error, (held - r) ** 2)
        want.append(error / 2)
    got = value_loss(values, old, returns, clip)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_value_loss_gradient_equals_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    values, old, returns = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    values.requires_grad_()
    for clip in (None, 0.2):
        assert torch.autograd.gradcheck(lambda v, c=clip: value_loss(v, old, returns, c), values, eps=1e-6)


def test_value_loss_gives_no_gradient_to_a_value_that_has_moved_far_enough() -> None:
    values = torch.tensor([0.5, -0.5, 0.1], requires_grad=True)
    value_loss(values, torch.zeros(3), torch.ones(3), 0.2).sum().backward()
    # Past the clip towards the return: none; away from it, and within the clip: V - R.
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.0, -1.5, -0.9])


def test_explained_variance_is_one_for_perfect_values_and_nan_where_nothing_varies() -> None:
    returns, mask = torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(torch.zeros(1, 3), returns, mask) == 0.0
    assert math.isnan(explained_variance(returns, torch.ones(1, 3), mask))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use": "sharde"}, "critic.use is 'sharde', must be one of shared, separate. did you mean 'shared'"),
        ({"lr": 1}, "critic has no 'lr'; It has use, learning_rate, coef, clip, warmup_steps"),
        ({"clp": 1}, "'clp'; did you mean 'clip'"),
        ({"learning_rate": 0}, "critic.learning_rate is 0, must be a finite number above 0"),
        ({"coef": float("inf")}, "critic.coef is inf"),
        ({"clip": -1}, "critic.clip is -1"),
        ({"coef": None}, "critic.coef is None"),
        ({"warmup_steps": 0.5}, "critic.warmup_steps is 0.5, must be a whole number"),
        ({"warmup_steps": -1}, "critic.warmup_steps is -1"),
        ({"warmup_steps": True}, "critic.warmup_steps is True"),
        ({"learning_rate": True}, "critic.learning_rate is True"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        checked_critic_settings(settings)


def test_settings_have_defaults_and_may_leave_out_the_clip() -> None:
    assert checked_critic_settings({}) == CriticSettings("shared", 1e-5, 0.1, 0.2, 0)
    assert checked_critic_settings({"use": "separate", "clip": None}).clip is None


def batch_of(seed: int = 0) -> dict[str, torch.Tensor]:
    """Four rows: prompts of 1 to 4 tokens padded on the left, completions of 5 to 2 on the right."""
    ids = torch.randint(5, 100, (4, 9), generator=torch.Generator().manual_seed(seed))
    prompt_mask = torch.tensor([[int(t >= 3 - i) for t in range(4)] for i in range(4)])
    completion_mask = torch.tensor([[int(t < 5 - i) for t in range(5)] for i in range(4)])
    return {
        "prompt_ids": ids[:, :4],
        "prompt_mask": prompt_mask,
        "completion_ids": ids[:, 4:],
        "completion_mask": completion_mask,
    }


def pass_of(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    """The policy's forward pass as TRL makes it."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    return model(input_ids=ids, attention_mask=attention, labels=ids, fused_lm_head=True)


def randomise(head: ValueHead) -> None:
    with torch.no_grad():
        for p in head.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(5)))


def critic_of(use: str, model_path: Path, folder: Path | None = None) -> tuple[Any, Any]:
    """A critic and the policy it is for, in eval mode."""
    model = load_model(model_path).eval()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    if use == "shared":
        return SharedCritic(model, folder), model
    critic = SeparateCritic(model_path, folder, {})
    critic.place(torch.device("cpu"), gradient_checkpointing=False)
    return critic, model


def hand_values(model_path: Path, head: ValueHead, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """One un-padded row at a time, in float64: the value before each completion token."""
    backbone = AutoModel.from_pretrained(model_path, dtype=torch.float64).eval()
    out = []
    for i in range(4):
        prompt = batch["prompt_ids"][i][batch["prompt_mask"][i] == 1]
        completion = batch["completion_ids"][i][batch["completion_mask"][i] == 1]
        hidden = backbone(torch.cat([prompt, completion])[None]).last_hidden_state[0]
        values = hidden @ head.weight.double()[0] + head.bias.double()
        out.append(values[len(prompt) - 1 : -1].detach())
    return out


@pytest.mark.slow
@pytest.mark.parametrize("use", ["shared", "separate"])
def test_values_stand_before_the_tokens_they_judge(model_path: Path, use: str) -> None:
    critic, model = critic_of(use, model_path)
    randomise(critic.head)
    batch = batch_of()
    with torch.no_grad():
        pass_of(model, batch)
        values = critic.values(batch)
    assert values.shape == (4, 5)
    for i, want in enumerate(hand_values(model_path, critic.head, batch)):
        torch.testing.assert_close(values[i, : len(want)].double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_shared_values_are_of_the_last_pass_and_taken_once(model_path: Path) -> None:
    critic, model = critic_of("shared", model_path)
    randomise(critic.head)
    with torch.no_grad():
        pass_of(model, batch_of(seed=1))  # a pass whose values are not read
        pass_of(model, batch_of())
        got = critic.values(batch_of())
        pass_of(model, batch_of())
    assert torch.equal(critic.values(batch_of()), got)
    with pytest.raises(TrainingError, match="no pass of the policy over these rows"):
        critic.values(batch_of())


def test_detached_values_have_no_gradient_for_the_policy(model_path: Path) -> None:
    critic, model = critic_of("shared", model_path)
    randomise(critic.head)
    critic.detached = True
    pass_of(model, batch_of())
    critic.values(batch_of()).sum().backward()
    assert all(p.grad is not None for p in critic.head.parameters())
    assert all(p.grad is None for name, p in model.named_parameters() if "value_head" not in name)


@pytest.mark.slow
def test_values_start_at_zero(model_path: Path) -> None:
    for use in ("shared", "separate"):
        critic, model = critic_of(use, model_path)
        pass_of(model, batch_of())
        assert critic.values(batch_of()).abs().max() == 0.0


@pytest.mark.slow
def test_model_with_a_shared_critic_is_published_as_an_ordinary_one(
    model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    critic, model = critic_of("shared", model_path)
    randomise(critic.head)
    assert "value_head.weight" in dict(model.named_parameters())
    write_weights(model, load_tokenizer(model_path), tmp_path)
    assert (
        load_file(tmp_path / "model.safetensors").keys() == load_file(model_path / "model.safetensors").keys()
    )
    with caplog.at_level(logging.WARNING):
        loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(loaded) is type(model)
    assert not [record for record in caplog.records if record.name.startswith("transformers")]


@pytest.mark.slow
@pytest.mark.parametrize("use", ["shared", "separate"])
def test_saved_critic_comes_back_exactly(model_path: Path, tmp_path: Path, use: str) -> None:
    critic, _ = critic_of(use, model_path)
    with torch.no_grad():
        for p in critic.parameters():
            p.add_(0.01)
    critic.save(tmp_path / "other", write=False)  # as the other ranks
    assert not (tmp_path / "other").exists()
    critic.save(tmp_path / "critic", write=True)
    again, _ = critic_of(use, model_path, tmp_path / "critic")
    assert all(torch.equal(a, b) for a, b in zip(critic.parameters(), again.parameters(), strict=True))
    with pytest.raises(ResumeError, match=r"has no value_head.safetensors: .* written without a critic"):
        critic_of(use, model_path, tmp_path / "nothing")


@pytest.mark.slow
def test_separate_critic_has_no_dropout(model_path: Path, tmp_path: Path) -> None:
    model = load_model(model_path)
    model.config.attention_dropout = 0.5
    write_weights(model, load_tokenizer(model_path), tmp_path)
    critic, _ = critic_of("separate", tmp_path)
    randomise(critic.head)
    assert torch.equal(critic.values(batch_of()), critic.values(batch_of()))


@pytest.mark.slow
def test_critic_has_a_rate_of_its_own(model_path: Path) -> None:
    for use in ("shared", "separate"):
        critic, model = critic_of(use, model_path)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        Critic(CriticSettings(learning_rate=5e-3), critic).give_own_rate(optimizer)
        policy, own = optimizer.param_groups
        assert (own["lr"], own["weight_decay"]) == (5e-3, 0.0)
        assert [id(p) for p in own["params"]] == [id(p) for p in critic.parameters()]
        assert {id(p) for p in policy["params"]} == {
            id(p) for name, p in model.named_parameters() if "value_head" not in name
        }


@pytest.mark.slow
def test_own_gradients_are_clipped_checked_and_cleared(model_path: Path) -> None:
    critic, _ = critic_of("separate", model_path)
    callback = OwnGradients(critic.parameters())
    args = type("Args", (), {"max_grad_norm": 0.5})
    for p in critic.parameters():
        p.grad = torch.ones_like(p)
    callback.on_pre_optimizer_step(args, None, None)
    norm = torch.nn.utils.get_total_norm([p.grad for p in critic.parameters()])
    assert float(norm) == pytest.approx(0.5, rel=1e-4)
    for off in (0.0, -1.0):
        callback.on_pre_optimizer_step(type("Args", (), {"max_grad_norm": off}), None, None)
    assert float(torch.nn.utils.get_total_norm([p.grad for p in critic.parameters()])) == float(norm)
    callback.on_optimizer_step(args, None, None)
    assert all(p.grad is None for p in critic.parameters())
    critic.head.bias.grad = torch.tensor([math.nan])
    with pytest.raises(TrainingError, match="critic's gradient norm is nan, so no weight was changed"):
        callback.on_pre_optimizer_step(args, None, None)


def test_metrics_are_means_over_the_tokens_that_train(model_path: Path) -> None:
    critic = Critic(CriticSettings(), critic_of("shared", model_path)[0])
    batch = {"values": torch.tensor([[1.0, 3.0, 50.0]]), "returns": torch.tensor([[2.0, 5.0, -50.0]])}
    assert critic.metrics(batch, torch.tensor([[1.0, 0.5, 0.0]])) == {
        "critic/value": 2.0,
        "critic/return": 3.5,
        "critic/explained_variance": pytest.approx(1 - 0.25 / 2.25),
    }


def test_warm_up_ends_after_as_many_steps_as_told(model_path: Path) -> None:
    critic = Critic(CriticSettings(warmup_steps=2), critic_of("shared", model_path)[0])
    detached = []
    for step in range(4):
        critic.start_step(step)
        detached.append(critic.model.detached)
    assert detached == [True, True, False, False]


def test_critic_and_operators_that_read_values_need_each_other(tmp_path: Path) -> None:
    gae, plain = make_batch_ops(["gae"]), make_batch_ops(["returns_to_go"])
    assert critic_plan(None, plain, tmp_path, None, {}) is None
    plan = critic_plan({"use": "separate"}, gae, tmp_path, None, {"model_init_kwargs": {"dtype": "float32"}})
    assert plan is not None
    assert (plan.settings.use, plan.options) == ("separate", {"dtype": "float32"})
    with pytest.raises(RecipeError, match=r"read a critic's values .* has no critic; add 'critic: \{\}'"):
        critic_plan(None, gae, tmp_path, None, {})
    with pytest.raises(
        RecipeError, match="no operator in its batch_ops gives it returns to learn; add 'gae'"
    ):
        critic_plan({}, plain, tmp_path, None, {})


def test_separate_critic_is_refused_where_the_policy_is_sharded(model_path: Path) -> None:
    plan = critic_plan({"use": "separate"}, make_batch_ops(["gae"]), model_path, None, {})
    assert plan is not None
    args = type("Args", (), {"deepspeed": {"zero_optimization": {"stage": 2}}, "fsdp": None})
    with pytest.raises(RecipeError, match=r"Set critic\.use to 'shared'"):
        plan.build(None, args, torch.device("cpu"))
