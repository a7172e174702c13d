"""A recipe's `batch_ops` list: what is bound, what is refused and in which words."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from rft_data.core.errors import RecipeError, UnknownComponentError
from trainers.policy.batch_ops import BatchOp, BatchState, make_batch_ops

STATE = BatchState(
    rewards=torch.ones(1),
    groups=torch.zeros(1, dtype=torch.long),
    mask=torch.ones(1, 2),
    sampled=torch.zeros(1, 2),
    token_rewards=torch.tensor([[0.0, 1.0]]),
)


def doubled(state: BatchState, times: int = 2) -> BatchState:
    """An operator of the user's."""
    return replace(state, advantages=times * state.token_rewards)


def halved(state: BatchState) -> BatchState:
    """Another, which needs advantages."""
    assert state.advantages is not None
    return replace(state, advantages=state.advantages / 2)


HALVED = BatchOp(halved, "mine", frozenset({"advantages", "prox"}))


def test_operators_run_in_order_with_their_arguments() -> None:
    ops = make_batch_ops([{"returns_to_go": {"gamma": 0.5}}, {"whiten": {"shift_mean": False}}])
    state = STATE
    for op in ops:
        state = op.function(state)
    assert state.advantages is not None
    plain = torch.tensor([0.5, 1.0])
    want = (plain - 0.75) / plain.var().sqrt() + 0.75
    torch.testing.assert_close(state.advantages[0], want, rtol=1e-6, atol=1e-6)


def test_needs_are_what_the_batch_must_have() -> None:
    ops = make_batch_ops([{"kl_penalty": {"coef": 1}}, {"gae": None}, "whiten"])
    assert [op.needs for op in ops] == [{"ref"}, {"values"}, set()]
    (alone,) = make_batch_ops(["whiten"])
    assert alone.needs == {"advantages"}
    assert make_batch_ops([]) == ()


def test_own_operators_come_by_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "tests_of_bind"
    monkeypatch.setitem(sys.modules, here, sys.modules[__name__])
    ops = make_batch_ops([{f"{here}:doubled": {"times": 3}}, f"{here}:HALVED"])
    assert [op.needs for op in ops] == [set(), {"prox"}]
    state = ops[1].function(ops[0].function(STATE))
    assert state.advantages is not None
    assert state.advantages.tolist() == [[0.0, 1.5]]
    with pytest.raises(RecipeError, match="'tests_of_bind:STATE' is a BatchState; wanted a function"):
        make_batch_ops([f"{here}:STATE"])
    with pytest.raises(RecipeError, match=r"times: .*integer, got 'x'"):
        make_batch_ops([{f"{here}:doubled": {"times": "x"}}])


@pytest.mark.parametrize(
    ("specs", "error", "words"),
    [
        (["gea"], UnknownComponentError, "batch operator 'gea' is not known; did you mean 'gae'"),
        ([{"gae": {"lambda": 1}}], RecipeError, "'gae'.* 'lambda'.* gamma, lam"),
        ([{"gae": {"lam": -1, "gamma": 3}}], RecipeError, "'gae'.* lam.*greater than.*gamma.*less than"),
        ([{"gae": {"lam": 1.5}}], RecipeError, "'gae'.* lam.*less than or equal to 1"),
        ([{"gae": {"gamma": "1"}}], RecipeError, "'gae'.* gamma.*valid number"),
        ([{"jsd": {"coef": float("nan")}}], RecipeError, "'jsd'.* coef.*must be a .*finite number"),
        (
            [{"kl_penalty": {"estimator": "k4"}}, "gae"],
            RecipeError,
            "must be one of k1, k2, k3, abs, low_var",
        ),
        ([{"gae": 1}], RecipeError, "wanted a mapping of arguments"),
        ([{"gae": {}, "whiten": {}}], RecipeError, "wanted one operator name"),
        (["gae", {"kl_penalty": {}}], RecipeError, "no operator after it reads; put it before"),
        ([{"kl_penalty": {}}, "distill"], RecipeError, "no operator after it reads"),
        (["gae", "batch_std"], RecipeError, "'gae' sets advantages, which an operator after it sets anew"),
    ],
)
def test_bad_lists_are_refused(specs: list[Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make_batch_ops(specs)
