"""The table of losses: each has a proof, and a recipe's choice is bound or refused before a run starts."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from pydantic import TypeAdapter, ValidationError

from rft_data.core.errors import RecipeError, UnknownComponentError
from tests.trainers.policy.losses import (
    test_clipped,
    test_decoupled,
    test_m2po,
    test_mirror,
    test_mixed,
    test_policy_gradient,
    test_rec,
    test_supervised,
)
from tests.trainers.policy.losses.proof import SOME, Batch, batches
from trainers.policy.losses import LOSSES, arguments, make_loss
from trainers.policy.losses.context import LossContext
from trainers.policy.losses.loss import Loss

PROOFS = (
    test_clipped,
    test_decoupled,
    test_m2po,
    test_mirror,
    test_mixed,
    test_policy_gradient,
    test_rec,
    test_supervised,
)
OPTIONAL = {"ref", "prox", "rewards", "versions_behind", "expert_share"}


def doubled(context: LossContext, factor: float = 2.0) -> torch.Tensor:
    return -factor * context.logprobs


def summed(context: LossContext) -> torch.Tensor:
    return context.logprobs.sum()


def reads_ref(context: LossContext) -> torch.Tensor:
    return context.logprobs - context.ref


def measuring(context: LossContext, *, shape: tuple[int, ...] | None = None) -> Any:
    gate = context.logprobs.sigmoid()
    return -gate * context.advantages, {"gate": gate if shape is None else torch.zeros(shape)}


MISSPELT = Loss(doubled, aggregation="row_men")  # type: ignore[arg-type]
WITH_REF = Loss(reads_ref, paper="none", aggregation="row_sum", needs=frozenset({"ref"}))


def test_every_loss_has_a_reference() -> None:
    proven = {name for module in PROOFS for name in module.REFERENCES}
    assert proven == set(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_a_reference_declares_the_defaults_of_its_loss(name: str) -> None:
    references = {key: ref for module in PROOFS for key, ref in module.REFERENCES.items()}
    declared = inspect.signature(references[name]).parameters
    for parameter in list(inspect.signature(LOSSES[name].function).parameters.values())[1:]:
        if parameter.name in declared:
            assert declared[parameter.name].default == parameter.default


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
@SOME
@given(batch=batches())
def test_a_loss_reads_only_what_it_says_it_needs(name: str, batch: Batch) -> None:
    context = batch.context()
    loss = make_loss(name, {})
    bare = dataclasses.replace(context, **dict.fromkeys(OPTIONAL - loss.needs))
    assert torch.equal(loss(context), loss(bare))


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_says_where_it_comes_from(name: str) -> None:
    loss = LOSSES[name]
    assert loss.paper
    assert loss.formula
    assert loss.function.__doc__
    assert loss.needs <= OPTIONAL | {"experts"}


def test_arguments_are_bound() -> None:
    loss = make_loss("opmd", {"tau": 3})
    context = LossContext(
        logprobs=torch.tensor([[-2.0]], requires_grad=True),
        old=torch.tensor([[-2.0]]),
        sampled=torch.tensor([[-2.0]]),
        advantages=torch.tensor([[1.0]]),
        mask=torch.ones(1, 1),
        entropies=torch.ones(1, 1),
        is_expert=torch.tensor([False]),
    )
    assert loss(context).item() == 0.5
    assert LOSSES["opmd"](context).item() == 1.0


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (arguments.Positive, [1e-9, 2], [0, -1e-9, math.inf, math.nan]),
        (arguments.NonNegative, [0, 2], [-1e-9, math.inf, math.nan]),
        (arguments.Finite, [-2, 0, 2], [-math.inf, math.inf, math.nan]),
        (arguments.Share, [0, 1], [-1e-9, 1 + 1e-9]),
        (arguments.UpToOne, [1e-9, 1], [0, 1 + 1e-9]),
        (arguments.AboveOne, [1 + 1e-9, 3], [1, math.inf, math.nan]),
        (arguments.Steps, [0, 1], [-1, 0.5]),
    ],
)
def test_numbers_are_taken_up_to_their_bounds(kind: Any, taken: list[float], refused: list[float]) -> None:
    accepts = TypeAdapter(kind).validate_python
    assert [accepts(number) for number in taken] == taken
    for number in refused:
        with pytest.raises(ValidationError):
            accepts(number)


@pytest.mark.parametrize(
    ("use", "args", "message"),
    [
        ("ppo_clip", {"epsilon_low": 0}, "epsilon_low: .*greater than 0, got 0"),
        ("ppo_clip", {"epsilon_high": "0.2"}, "epsilon_high: .*valid number, got '0.2'"),
        ("ppo_clip", {"epsilon_hihg": 0.2}, "no argument 'epsilon_hihg' did you mean 'epsilon_high'"),
        ("dual_clip", {"max_ratio": 1.0}, "greater than 1"),
        ("rec", {"clip_mode": "twoside"}, "'none', 'one_side', 'two_side' or 'ring'"),
        ("rec", {"ring": [0.6]}, "ring: "),
        ("mix", {"mu": 1.5}, "less than or equal to 1"),
        ("chord", {"warmup_steps": 2.5}, "valid integer"),
        ("opmd", {"tau": float("nan")}, "tau: must be a JSON value"),
        ("raft", {"cap": True}, "cap: .*got True"),
        ("policy_gradient", {"cap": 2}, "It takes none"),
        (f"{__name__}:summed", {}, r"returned shape \(\)"),
        (f"{__name__}:reads_ref", {}, "fails on two rows"),
        (f"{__name__}:OPTIONAL", {}, "is a set; wanted a function"),
        (f"{__name__}:measuring", {"shape": [2]}, r"metrics \['gate'\] are not one number a token"),
        (f"{__name__}:MISSPELT", {}, "'row_men'; wanted one of token_mean, row_mean, row_sum"),
    ],
)
def test_what_a_loss_does_not_take_is_refused(use: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make_loss(use, args)


def test_all_wrong_values_are_told_at_once() -> None:
    with pytest.raises(RecipeError, match=r"epsilon_low: .*epsilon_high: "):
        make_loss("ppo_clip", {"epsilon_low": 2, "epsilon_high": -1})


def test_an_unknown_loss_is_met_with_the_nearest() -> None:
    with pytest.raises(UnknownComponentError, match="loss 'opdm' is not known; did you mean 'opmd'"):
        make_loss("opdm", {})


def test_your_own_loss_is_a_function_or_a_loss_at_an_import_path() -> None:
    assert make_loss(f"{__name__}:doubled", {"factor": 3.0}).aggregation == "token_mean"
    loss = make_loss(f"{__name__}:WITH_REF", {})
    assert (loss.aggregation, loss.needs) == ("row_sum", {"ref"})
