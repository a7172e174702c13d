"""Checks a recipe's `batch_ops` list against the operators' signatures, and binds their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import lookup
from trainers.policy.batch_ops.batch_op import BatchOp
from trainers.policy.binding import bound

BatchOpSpec = str | Mapping[str, Mapping[str, object] | None]
"""As recipes write one: `{gae: {lam: 0.95}}`, `{whiten: null}` or `whiten`."""

_KIND = "batch operator"
_IN_EVERY_BATCH = frozenset({"rewards", "token_rewards"})


def bind(specs: Sequence[BatchOpSpec], known: Mapping[str, BatchOp]) -> tuple[BatchOp, ...]:
    """The operators of a list, in its order; built in, or imported as `package.module:attribute`.

    The attribute is a BatchOp, or a function of a BatchState that sets advantages and reads no result of a
    forward pass.

    Raises: UnknownComponentError for an unknown name; RecipeError for an unknown argument, for a value of the
        wrong type or range, and for an operator whose result a later one overwrites or none reads.
    """
    named = [_bound(spec, known, f"batch_ops[{place}]") for place, spec in enumerate(specs)]
    if mistakes := _order_mistakes(named):
        raise RecipeError("batch_ops: " + "; ".join(mistakes) + ".")
    ops: list[BatchOp] = []
    for _, op in named:
        before = frozenset().union(*(earlier.sets for earlier in ops))
        ops.append(replace(op, needs=op.needs - before - _IN_EVERY_BATCH))
    return tuple(ops)


def _bound(spec: BatchOpSpec, known: Mapping[str, BatchOp], where: str) -> tuple[str, BatchOp]:
    name, args = _name_and_arguments(spec, where)
    found = lookup(name, known, _KIND)
    if not isinstance(found, BatchOp):
        if not callable(found):
            raise RecipeError(
                f"{where}: '{name}' is a {type(found).__name__}; wanted a function of a BatchState, or a "
                "trainers.policy.batch_ops.BatchOp."
            )
        found = BatchOp(found, paper=name, needs=_IN_EVERY_BATCH)
    return name, bound(name, args, {name: found}, _KIND)


def _name_and_arguments(spec: BatchOpSpec, where: str) -> tuple[str, Mapping[str, object]]:
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, Mapping) or len(spec) != 1:
        raise RecipeError(f"{where}: got {spec!r}; wanted one operator name with its arguments.")
    ((name, given),) = spec.items()
    if given is not None and not isinstance(given, Mapping):
        raise RecipeError(f"{where}.{name}: got {given!r}; wanted a mapping of arguments.")
    return str(name), given or {}


def _order_mistakes(ops: Sequence[tuple[str, BatchOp]]) -> list[str]:
    """Operators that would have no effect at their place in the list."""
    mistakes = []
    for place, (name, op) in enumerate(ops):
        later = [other for _, other in ops[place + 1 :]]
        if "token_rewards" in op.sets and not any("token_rewards" in other.needs for other in later):
            mistakes.append(
                f"'{name}' changes the tokens' rewards, which no operator after it reads; put it before the "
                "one that makes advantages of them (gae, returns_to_go)"
            )
        anew = any("advantages" in other.sets and "advantages" not in other.needs for other in later)
        if "advantages" in op.sets and anew:
            mistakes.append(
                f"'{name}' sets advantages, which an operator after it sets anew; keep one of the two"
            )
    return mistakes
