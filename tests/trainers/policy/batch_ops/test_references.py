"""Every batch operator against plain Python loops of its paper's formula, in float64, on random leases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.policy.batch_ops import BATCH_OPS, BatchState

Rows = list[list[float]]
FLOATS = st.floats(-3, 3, width=32)


@st.composite
def states(draw: Any) -> BatchState:
    """1 to 7 rows of 1 to 9 columns, float64: padding, experts, missing and equal rewards."""
    rows, columns = draw(st.integers(1, 7)), draw(st.integers(1, 9))

    def grid(of: st.SearchStrategy[Any]) -> torch.Tensor:
        row = st.lists(of, min_size=columns, max_size=columns)
        return torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)), dtype=torch.float64)

    def column(of: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(of, min_size=rows, max_size=rows))

    mask = grid(st.booleans())
    groups = column(st.integers(-1, 2))
    rewards = column(st.sampled_from([0.1, 0.1, 1.0, -2.5, math.nan]))
    expert = column(st.sampled_from([False, False, True]))
    token_rewards = torch.zeros(rows, columns, dtype=torch.float64)
    for i in range(rows):
        if groups[i] < 0:
            mask[i], expert[i] = 0.0, False
        if groups[i] < 0 or expert[i]:
            rewards[i] = math.nan
        trained = mask[i].nonzero()
        if len(trained) and not math.isnan(rewards[i]):
            token_rewards[i, trained[-1]] = rewards[i]
    if draw(st.booleans()):  # rewards of single steps, as an operator of the user's may add them
        token_rewards += grid(FLOATS)
    return BatchState(
        rewards=torch.tensor(rewards, dtype=torch.float64),
        groups=torch.tensor(groups),
        mask=mask,
        sampled=grid(FLOATS) * mask,
        token_rewards=token_rewards,
        advantages=grid(FLOATS) * mask * ~torch.tensor(expert).unsqueeze(1),
        prox=grid(FLOATS) * mask,
        ref=grid(FLOATS) * mask,
        values=grid(FLOATS) * mask,
        is_expert=torch.tensor(expert),
    )


def trained_columns(state: BatchState, row: int, *, scored: bool) -> list[int]:
    """The row's trained columns; none of an expert's, nor (with `scored`) of a row without a reward."""
    assert state.is_expert is not None
    left_out = bool(state.is_expert[row]) or (scored and math.isnan(float(state.rewards[row])))
    return [] if left_out else [t for t, m in enumerate(state.mask[row].tolist()) if m]


def zeros(state: BatchState) -> Rows:
    return [[0.0] * state.mask.shape[1] for _ in range(state.mask.shape[0])]


def gae(state: BatchState, gamma: float = 1.0, lam: float = 1.0) -> dict[str, Rows]:
    assert state.values is not None
    advantages, returns = zeros(state), zeros(state)
    for i, values in enumerate(state.values.tolist()):
        following, value_after = 0.0, 0.0
        for t in reversed(trained_columns(state, i, scored=True)):
            error = float(state.token_rewards[i, t]) + gamma * value_after - values[t]
            following = error + gamma * lam * following
            value_after = values[t]
            advantages[i][t], returns[i][t] = following, following + values[t]
    return {"advantages": advantages, "returns": returns}


def returns_to_go(state: BatchState, gamma: float = 1.0) -> dict[str, Rows]:
    advantages = zeros(state)
    for i in range(len(advantages)):
        following = 0.0
        for t in reversed(trained_columns(state, i, scored=True)):
            following = float(state.token_rewards[i, t]) + gamma * following
            advantages[i][t] = following
    return {"advantages": advantages}


def whiten(state: BatchState, shift_mean: bool = True) -> dict[str, Rows]:
    assert state.advantages is not None
    given = state.advantages.tolist()
    part = [
        (i, t)
        for i in range(len(given))
        if not math.isnan(float(state.rewards[i])) or any(given[i])
        for t in trained_columns(state, i, scored=False)
    ]
    mean = math.fsum(given[i][t] for i, t in part) / max(len(part), 1)
    variance = math.fsum((given[i][t] - mean) ** 2 for i, t in part) / max(len(part) - 1, 1)
    out = zeros(state)
    for i, t in part:
        out[i][t] = (given[i][t] - mean) / math.sqrt(variance + 1e-8) + (0.0 if shift_mean else mean)
    return {"advantages": out}


def batch_std(state: BatchState, eps: float = 1e-4) -> dict[str, Rows]:
    rewards = {i: r for i, r in enumerate(state.rewards.tolist()) if not math.isnan(r)}
    mean = math.fsum(rewards.values()) / max(len(rewards), 1)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards.values()) / max(len(rewards) - 1, 1))
    out = zeros(state)
    for i, reward in rewards.items():
        group = [r for j, r in rewards.items() if state.groups[j] == state.groups[i]]
        for t in trained_columns(state, i, scored=True):
            same = max(group) == min(group)
            out[i][t] = 0.0 if same else (reward - math.fsum(group) / len(group)) / (std + eps)
    return {"advantages": out}


def kl_penalty(state: BatchState, coef: float = 0.001, estimator: str = "k1") -> dict[str, Rows]:
    assert state.ref is not None
    out: Rows = state.token_rewards.tolist()
    for i in range(len(out)):
        for t in trained_columns(state, i, scored=False):
            r = float(state.ref[i, t] - state.sampled[i, t])
            k3 = math.exp(r) - 1 - r  # r is in [-6, 6]
            kl = {"k1": -r, "k2": r * r / 2, "k3": k3, "abs": abs(r), "low_var": min(k3, 10.0)}
            out[i][t] -= coef * kl[estimator]
    return {"token_rewards": out}


def distill(state: BatchState, coef: float = 1.0) -> dict[str, Rows]:
    assert state.ref is not None
    out = zeros(state)
    for i in range(len(out)):
        for t in trained_columns(state, i, scored=False):
            out[i][t] = coef * float(state.ref[i, t] - state.sampled[i, t])
    return {"advantages": out}


def jsd(state: BatchState, coef: float = 1.0, beta: float = 0.5) -> dict[str, Rows]:
    assert state.ref is not None
    out = zeros(state)
    for i in range(len(out)):
        for t in trained_columns(state, i, scored=False):
            teacher, policy = math.exp(float(state.ref[i, t])), math.exp(float(state.sampled[i, t]))
            mixture = beta * teacher + (1 - beta) * policy
            weight = (teacher / policy - 1) if beta == 0 else math.log(mixture / policy) / beta
            out[i][t] = coef * weight
    return {"advantages": out}


UNIT = st.floats(0, 1)
REFERENCES: dict[str, tuple[Callable[..., dict[str, Rows]], dict[str, st.SearchStrategy[Any]]]] = {
    "gae": (gae, {"gamma": UNIT, "lam": UNIT}),
    "returns_to_go": (returns_to_go, {"gamma": UNIT}),
    "whiten": (whiten, {"shift_mean": st.booleans()}),
    "batch_std": (batch_std, {"eps": st.sampled_from([1e-4, 0.5])}),
    "kl_penalty": (
        kl_penalty,
        {
            "coef": st.sampled_from([0.0, 0.3]),
            "estimator": st.sampled_from(["k1", "k2", "k3", "abs", "low_var"]),
        },
    ),
    "distill": (distill, {"coef": st.sampled_from([1.0, 0.3])}),
    "jsd": (jsd, {"coef": st.sampled_from([1.0, 0.3]), "beta": st.sampled_from([0.0, 0.1, 0.5, 1.0])}),
}
"""Each operator's reference, and its arguments as they are drawn."""


def test_every_batch_operator_has_a_reference_a_formula_and_a_paper() -> None:
    assert BATCH_OPS.keys() == REFERENCES.keys()
    assert all(op.paper and op.formula for op in BATCH_OPS.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_batch_operator_equals_its_formula(name: str) -> None:
    reference, arguments = REFERENCES[name]

    @settings(max_examples=40)
    @given(states(), st.fixed_dictionaries({}, optional=arguments))
    def check(state: BatchState, args: dict[str, Any]) -> None:
        before = {field: tensor.clone() for field, tensor in tensors(state).items()}
        after = tensors(BATCH_OPS[name].function(state, **args))
        want = reference(state, **args)
        assert set(want) == set(BATCH_OPS[name].sets)
        for field, rows in want.items():
            torch.testing.assert_close(
                after[field], torch.tensor(rows, dtype=torch.float64), rtol=1e-6, atol=1e-6
            )
        for field, tensor in before.items():  # pure: it changes neither its input nor other fields
            torch.testing.assert_close(tensors(state)[field], tensor, rtol=0, atol=0, equal_nan=True)
            if field not in want:
                torch.testing.assert_close(after[field], tensor, rtol=0, atol=0, equal_nan=True)

    check()


def tensors(state: BatchState) -> dict[str, torch.Tensor]:
    fields = {name: getattr(state, name) for name in state.__slots__}
    return {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}
