"""Makes the policy and the sampler that a recipe names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from rft_data.core.errors import RecipeError
from rft_data.core.lookup import lookup
from rft_data.sampler.fresh_first import FreshFirst
from rft_data.sampler.group_sampler import GroupSampler
from rft_data.sampler.interfaces import NEW_RUN, History, LeaseLedger, Versions
from rft_data.sampler.mix import Mix
from rft_data.sampler.policy import Policy
from rft_data.sampler.ready_first import ReadyFirst
from rft_data.sampler.replay import Replay
from rft_data.sampler.windowed import Windowed, fifo

POLICIES: dict[str, Callable[..., Policy]] = {
    "fifo": fifo,
    "windowed": Windowed,
    "ready_first": ReadyFirst,
    "fresh_first": FreshFirst,
    "replay": Replay,
    "mix": Mix,
}


def make_policy(use: str, args: Mapping[str, object]) -> Policy:
    """The built-in policy of this name, or a class of your own by import path `module:Class`.

    Raises: UnknownComponentError if there is none; RecipeError if it does not take these arguments, or is
        no `Policy`.
    """
    make = lookup(use, POLICIES, "sampler")
    try:
        inspect.signature(make).bind(**args)
    except TypeError as err:
        raise RecipeError(
            f"sampler '{use}': {err}; it takes {', '.join(inspect.signature(make).parameters) or 'nothing'}."
        ) from err
    policy = make(**args)
    if not isinstance(policy, Policy):
        raise RecipeError(
            f"sampler '{use}' makes a {type(policy).__name__}; derive it from rft_data.sampler.Policy."
        )
    return policy


def make_sampler(
    use: str,
    args: Mapping[str, object],
    *,
    ledger: LeaseLedger,
    versions: Versions,
    consumer: str,
    groups_per_step: int,
    max_staleness: int | None,
    history: History = NEW_RUN,
) -> GroupSampler:
    """The sampler of one consumer; see `GroupSampler` for the arguments.

    Raises: as `make_policy`; RecipeError if the ledger allows fewer uses of a group than the policy.
    """
    policy = make_policy(use, args)
    if policy.max_uses > ledger.max_uses:
        raise RecipeError(
            f"sampler '{use}' uses a group up to {policy.max_uses} times, the ledger allows "
            f"{ledger.max_uses}; open it with max_uses={policy.max_uses}."
        )
    return GroupSampler(
        policy,
        ledger=ledger,
        versions=versions,
        consumer=consumer,
        groups_per_step=groups_per_step,
        max_staleness=max_staleness,
        history=history,
    )
