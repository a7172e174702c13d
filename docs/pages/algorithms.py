"""The page of algorithms, from the registries: `python -m docs.pages.algorithms > docs/algorithms.md`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rft_data.recipe.algorithms import ALGORITHMS, Algorithm, Settings
from trainers.policy.batch_ops import BATCH_OPS
from trainers.policy.kl import KL_ESTIMATORS
from trainers.policy.losses import LOSSES

OPERATORS: Mapping[str, str] = {
    "grpo_advantage_mapper": "(r - mean) / (std + ε); `scale: none`: r - mean; `batch`: std of the batch",
    "rloo_advantage_mapper": "r - mean of the group's other rewards",
    "opmd_advantage_mapper": "r - τ log mean exp(r / τ)",
    "asymre_advantage_mapper": "r - (mean + δV)",
    "maxrl_advantage_mapper": "(c - p) / p, c = 1[r ≥ correct], p = mean c",
    "pass_at_k_advantage_mapper": "of pass@k over the group's subsets of k, in closed form",
    "reinforce_baseline_advantage_mapper": "(r - mean) / (std of the batch's r - mean, + ε)",
    "remax_advantage_mapper": "r - reward of the greedy rollout",
    "reward_advantage_mapper": "r",
    "step_wise_advantage_mapper": "GRPO's over the rollouts' last turns, given to every turn",
    "gigpo_advantage_mapper": "A_rollout + ω A_state, each standardised within its group",
}
"""Advantages that need only their group; mean and std are the group's."""
TRL_LOSSES: Mapping[str, tuple[str, str]] = {
    "grpo": ("-min(r A, clip(r, 1-ε_low, 1+ε_high) A)", "rows' token means, averaged"),
    "bnpo": ("as `grpo`", "micro-batch's tokens"),
    "dapo": ("as `grpo`", "step's tokens"),
    "dr_grpo": ("as `grpo`", "rows x longest completion"),
    "luspo": ("as `grpo`; r of the sequence, where its level is set so", "rows' token sums, averaged"),
    "cispo": ("-sg(min(r, ε_high)) A log π", "step's tokens"),
    "sapo": ("-A sigmoid(T (r - 1)) 4 / T, T by the sign of A", "rows' token means, averaged"),
    "vespo": ("-sg(w^k e^(λ(1 - w))) A log π, w the sequence's ratio", "step's tokens"),
}
"""TRL's own, by `trl.loss_type`: a token's term, and what it is averaged over."""
_REDUCED = {"token_mean": "step's tokens", "row_mean": "rows' token means, averaged"}
_REDUCED["row_sum"] = "rows' token sums, averaged"
_TRL_TEST = "tests/trainers/policy/test_trls_losses.py"

_INTRODUCTION = """
A recipe names an algorithm in one word, and everything the recipe itself sets wins over what is here:

```yaml
stages:
  - {algorithm: rloo, groups_per_step: 16, steps: 200, trl: {learning_rate: 1.0e-6}}
```

`rft recipe explain` shows what a name has set. An algorithm of your own is an `Algorithm` of
`rft_data/recipe/algorithms.py` by import path. So is a loss (`loss: {use: "package.module:name"}`).

Symbols: π policy being trained, μ policy that sampled, prox policy at the step's start, ref reference or
teacher, π* policy on an expert's token; r ratio π / old policy in a loss, reward in an advantage;
d = log(π / old); A advantage; V critic's value; sg() carries no gradient. Sums over t are over a row's
trained tokens; r and A are the token's.
"""


def page() -> str:
    """The whole page as Markdown."""
    head = ["# Algorithms", "", "Written by `python -m docs.pages.algorithms`; a test keeps it current."]
    parts = (_presets(), _operators(), _batch_ops(), _losses(), _trls(), _estimators())
    return "\n".join([*head, _INTRODUCTION, *(line for part in parts for line in part)]).rstrip() + "\n"


def loss_of(algorithm: Algorithm) -> str:
    """A preset's loss: ours with its token's term, or TRL's with its options."""
    if algorithm.loss is None:
        return f"TRL's: {_arguments(algorithm.trl_loss)}"
    use, args = algorithm.loss["use"], algorithm.loss.get("args") or {}
    given = f" ({_arguments(args)})" if args else ""
    return f"`{use}`{given}: {LOSSES[use].formula}"


def advantage_of(algorithm: Algorithm) -> str:
    """A preset's operators, group by group and then over the lease."""
    entries = [*algorithm.advantage, *algorithm.batch_ops]
    if algorithm.critic is not None:
        entries.insert(len(algorithm.advantage), {"critic": algorithm.critic})
    named = [f"`{name}`{_braced(args)}" for entry in entries for name, args in entry.items()]
    return ", ".join(named)


def _presets() -> Iterable[str]:
    yield from _table(
        "Presets",
        ("algorithm", "what it is", "advantage", "loss", "KL, entropy", "group", "sampler, needs", "paper"),
        (
            (
                f"`{name}`",
                preset.summary,
                advantage_of(preset),
                loss_of(preset),
                _regularisers(preset),
                str(preset.group_size),
                _surroundings(preset),
                paper(preset.paper),
            )
            for name, preset in ALGORITHMS.items()
        ),
    )


def _regularisers(preset: Algorithm) -> str:
    entropy = preset.trl.get("entropy_coef")
    found = [f"kl {_arguments(preset.kl)}"] if preset.kl else []
    return ", ".join(found + ([f"entropy {entropy:g}"] if entropy else [])) or "none"


def _surroundings(preset: Algorithm) -> str:
    sampler = "fifo" if preset.sampler is None else str(preset.sampler["use"])
    return ", ".join([sampler, *sorted(preset.needs)])


def _operators() -> Iterable[str]:
    yield from _table(
        "Advantages within a group",
        ("operator", "advantage", "proof"),
        ((f"`{name}`", formula, _test(f"ops.advantages.{name}")) for name, formula in OPERATORS.items()),
    )


def _batch_ops() -> Iterable[str]:
    yield from _table(
        "Advantages over the whole lease",
        ("batch operator", "what it sets", "arguments", "needs", "paper", "proof"),
        (
            (
                f"`{name}`",
                op.formula,
                _defaults(op.function),
                ", ".join(sorted(op.needs)),
                paper(op.paper),
                "`tests/trainers/policy/batch_ops/test_references.py`",
            )
            for name, op in BATCH_OPS.items()
        ),
    )


def _losses() -> Iterable[str]:
    yield from _table(
        "Losses of ours",
        ("loss", "a token's term", "averaged over", "arguments", "needs", "paper", "proof"),
        (
            (
                f"`{name}`",
                loss.formula,
                _REDUCED[loss.aggregation],
                _defaults(loss.function),
                ", ".join(sorted(loss.needs)),
                paper(loss.paper),
                _test(loss.function.__module__),
            )
            for name, loss in LOSSES.items()
        ),
    )


def _trls() -> Iterable[str]:
    rows = ((f"`{name}`", *words, f"`{_TRL_TEST}`") for name, words in TRL_LOSSES.items())
    yield from _table("Losses of TRL's", ("trl.loss_type", "a token's term", "averaged over", "proof"), rows)


def _estimators() -> Iterable[str]:
    rows = (
        (f"`{name}`", _first_sentence(function), "`tests/trainers/policy/test_kl.py`")
        for name, function in KL_ESTIMATORS.items()
    )
    yield from _table("KL to the reference", ("kl.estimator", "a token's estimate", "proof"), rows)


def _table(title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterable[str]:
    yield from (f"## {title}", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head))
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def paper(source: str) -> str:
    """A source as a link; an id without a scheme is arXiv's."""
    kind, _, name = source.rpartition(":")
    if kind == "doi":
        return f"[{name}](https://doi.org/{name})"
    return f"[{name}](https://arxiv.org/abs/{name})"


def _defaults(function: Callable[..., Any]) -> str:
    """Arguments after the first, with their defaults."""
    _, *known = inspect.signature(function).parameters.values()
    return ", ".join(
        parameter.name if parameter.default is parameter.empty else f"{parameter.name} = {parameter.default}"
        for parameter in known
    )


def _arguments(settings: Settings) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in settings.items()) or "its defaults"


def _braced(settings: Settings) -> str:
    return f" ({_arguments(settings)})" if settings else ""


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _first_sentence(function: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def _test(module: str) -> str:
    """The test of a module: tests mirror the tree."""
    folder, _, name = module.replace(".", "/").rpartition("/")
    return f"`tests/{folder}/test_{name}.py`"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is the output
