"""Metrics that experts look at, as pure functions of plain numbers, in float64.

Nothing here reads a buffer or a clock; the loop passes in the counts. Every function returns `{key: value}`
for the metrics log; a figure that is not known yet has no key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from rft_data.core.words import ADMITTED

Numbers = dict[str, float]

PASS_RATE_EDGES = (0.25, 0.5, 0.75)
"""Groups solved sometimes, but not always, are counted by quarter of the pass rate."""
ROLLOUT_REWARD = "rollout_reward"
"""Mean reward of all scored rollouts that arrived; the trainer's `reward` is of those trained on."""
LAST_LAG = 8
"""This lag and larger ones are counted together."""


def lag_histograms(sampled: ArrayLike, arrived: ArrayLike, leased: ArrayLike) -> Numbers:
    """Lags of the trained groups, split into the time before and after arrival.

    Args: three lists of G optimizer-step counts, one entry for each group of a lease: behind the
        weights that sampled its oldest token, when it arrived, and when it was leased.
    Returns: groups by lag as `lag_in_flight/N`, `lag_in_queue/N` and `lag/N` (the sum of the two;
        `lag/8+` from LAST_LAG on), and `lag_mean`, `lag_max`.
    Raises: ValueError unless sampled <= arrived <= leased for every group.
    """
    first, middle, last = (np.asarray(steps, np.int64) for steps in (sampled, arrived, leased))
    if not (first.shape == middle.shape == last.shape) or (first > middle).any() or (middle > last).any():
        raise ValueError(
            "lags need sampled <= arrived <= leased for each group, in optimizer steps; "
            f"got {first.tolist()}, {middle.tolist()}, {last.tolist()}."
        )
    if not len(first):
        return {}
    parts = {"lag_in_flight": middle - first, "lag_in_queue": last - middle, "lag": last - first}
    found: Numbers = {"lag_mean": float(parts["lag"].mean()), "lag_max": float(parts["lag"].max())}
    for name, lags in parts.items():
        for lag, groups in sorted(Counter(np.minimum(lags, LAST_LAG).tolist()).items()):
            found[f"{name}/{lag}{'+' if lag == LAST_LAG else ''}"] = float(groups)
    return found


def bubble(busy_s: float, elapsed_s: float) -> float | None:
    """Bubble ratio of a role: idle / (idle + busy) seconds, in [0, 1]; None when no time has passed.

    `busy_s`: seconds in which it had at least one piece of work (not the sum over pieces in parallel).
    """
    if elapsed_s <= 0:
        return None
    return float(np.clip(1.0 - busy_s / elapsed_s, 0.0, 1.0))


def residual(groups_by_state: Mapping[str, int]) -> int:
    """Groups admitted but in no state; 0 in a sound run. `groups_by_state`: `Sampler.conservation()`."""
    return groups_by_state[ADMITTED] - sum(n for state, n in groups_by_state.items() if state != ADMITTED)


def operator_facts(counts: Mapping[str, float]) -> Numbers:
    """Fractions of dropped and quarantined rows, and seconds, for each operator and for the whole list.

    Args: counts: `Pipeline.metrics()`: `<operator>/{rows_in,rows_out,quarantined,seconds}`.
    Returns: `filtered_fraction/<operator>` (of the rows that reached it), `quarantined_fraction/<operator>`,
        `seconds/<operator>`; without an operator's name: of all rows, over all operators.
    """
    names = list(dict.fromkeys(key.rpartition("/")[0] for key in counts))
    facts: Numbers = {}
    dropped = aside = 0.0
    for name in names:
        rows, out, bad = (counts.get(f"{name}/{k}", 0.0) for k in ("rows_in", "rows_out", "quarantined"))
        facts[f"seconds/{name}"] = counts.get(f"{name}/seconds", 0.0)
        if rows:
            facts[f"filtered_fraction/{name}"] = (rows - out - bad) / rows
            facts[f"quarantined_fraction/{name}"] = bad / rows
        dropped, aside = dropped + rows - out - bad, aside + bad
    facts["seconds"] = sum(counts.get(f"{name}/seconds", 0.0) for name in names)
    rows = max((counts.get(f"{name}/rows_in", 0.0) for name in names), default=0.0)
    if rows:  # every row reaches the first operator
        facts["filtered_fraction"], facts["quarantined_fraction"] = dropped / rows, aside / rows
    return facts


def pass_rate_histogram(rewards: Iterable[Sequence[float | None]]) -> Numbers:
    """Groups by pass rate: never (`0`), by quarter, always (`1`); groups without any reward separately.

    Args: rewards: for each group, one reward for each rollout, None where unscored; clipped to [0, 1].
    Returns: `pass_rate_groups/{0,0-0.25,0.25-0.5,0.5-0.75,0.75-1,1,unscored}`, all seven, and
        `frac_solved_none`, `frac_solved_all` of the scored groups.
    """
    bounds = [0.0, *PASS_RATE_EDGES, 1.0]
    inner = [f"{low:g}-{high:g}" for low, high in pairwise(bounds)]
    counts = dict.fromkeys(["0", *inner, "1", "unscored"], 0.0)
    for group in rewards:
        scored = np.array([r for r in group if r is not None], np.float64)
        rate = float(np.clip(scored, 0.0, 1.0).mean()) if len(scored) else None
        if rate is None:
            counts["unscored"] += 1
        elif rate in (0.0, 1.0):
            counts[f"{rate:g}"] += 1
        else:
            counts[inner[int(np.searchsorted(PASS_RATE_EDGES, rate, side="right"))]] += 1
    facts = {f"pass_rate_groups/{name}": groups for name, groups in counts.items()}
    total = sum(counts.values()) - counts["unscored"]
    if total:
        facts |= {"frac_solved_none": counts["0"] / total, "frac_solved_all": counts["1"] / total}
    return facts


def arm_facts(rewards: Mapping[str, Sequence[float]]) -> Numbers:
    """Rewards of the arms of an A/B test: `ab/ARM/n`, `ab/ARM/reward`, `ab/ARM/reward_stderr`.

    Args: rewards: by arm, the mean reward of each of its groups.
    Returns: number of groups, their mean, and its standard error (of a sample: from two groups on).
    """
    facts: Numbers = {}
    for arm, means in rewards.items():
        values = np.asarray(means, np.float64)
        facts[f"ab/{arm}/n"] = float(len(values))
        if len(values):
            facts[f"ab/{arm}/reward"] = float(values.mean())
        if len(values) > 1:
            facts[f"ab/{arm}/reward_stderr"] = float(values.std(ddof=1) / np.sqrt(len(values)))
    return facts


def ess_fraction(log_ratios: ArrayLike) -> float | None:
    """Effective sample size of importance weights as a fraction of their number, in (0, 1].

    Kish's (sum w)^2 / (n sum w^2) with w = exp(log ratio), nats; None for no weights. Computed about the
    largest weight, so it does not overflow.
    """
    logs = np.asarray(log_ratios, np.float64)
    if not logs.size:
        return None
    weights = np.exp(logs - logs.max())
    return float(weights.sum() ** 2 / (logs.size * np.square(weights).sum()))


def ess_by_age(ess: Mapping[int, float], lags: Mapping[int, int]) -> Numbers:
    """`StepReport.ess` (by policy version) as `ess/N` by lag N in optimizer steps, the mean of equal lags."""
    by_lag: dict[int, list[float]] = {}
    for version, value in ess.items():
        by_lag.setdefault(lags[version], []).append(value)
    return {f"ess/{lag}": float(np.mean(values)) for lag, values in sorted(by_lag.items())}


def share_ratios(dispatched: Mapping[str, float], trained: Mapping[str, float], name: str) -> Numbers:
    """Each class's share of trained groups divided by its share of dispatched ones; 1 if none is favoured.

    Args: dispatched, trained: rows or groups by class, for example by taskset. name: of the kind of class.
    Returns: `trained_share/<name>/<class>` and `trained_shift/<name>`, the total variation distance of the
        two distributions, in [0, 1]; nothing while either is empty.
    """
    out, back = sum(dispatched.values()), sum(trained.values())
    if not out or not back:
        return {}
    shares = {
        key: (dispatched.get(key, 0.0) / out, trained.get(key, 0.0) / back) for key in {*dispatched, *trained}
    }
    facts = {
        f"trained_share/{name}/{key}": share / base
        for key, (base, share) in sorted(shares.items())
        if base > 0  # a class may be trained that was dispatched before counting began
    }
    facts[f"trained_shift/{name}"] = sum(abs(a - b) for a, b in shares.values()) / 2
    return facts


@dataclass(frozen=True, slots=True)
class Window:
    """Counts between two records of the loop."""

    elapsed_s: float
    """Wall seconds."""
    steps: int = 0
    """Optimizer steps taken."""
    busy_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds with work, by role."""
    tokens: Mapping[str, float] = field(default_factory=dict)
    """Tokens by use: `generated`, `trained`."""
    groups_by_state: Mapping[str, int] = field(default_factory=dict)
    """`Sampler.conservation()`, or empty."""
    rewards: Sequence[Sequence[float | None]] = ()
    """The effective rewards of each group that arrived."""
    dispatched: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Groups dispatched since the run began: by `taskset` and by `difficulty`, by class."""
    trained: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Groups trained since the run began, in the same way."""
    arms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The mean reward of each group that arrived, by arm of an A/B test; empty without one."""


def window_facts(window: Window) -> dict[str, Numbers]:
    """Role to numbers: a `bubble` for each busy role, and rates, counts and distributions of the `loop`."""
    facts: dict[str, Numbers] = {}
    for role, busy_s in window.busy_s.items():
        ratio = bubble(busy_s, window.elapsed_s)
        facts[role] = {"busy_s": busy_s, **({} if ratio is None else {"bubble": ratio})}
    loop = pass_rate_histogram(window.rewards) if window.rewards else {}
    known = [reward for group in window.rewards for reward in group if reward is not None]
    if known:
        loop[ROLLOUT_REWARD] = sum(known) / len(known)
    if window.elapsed_s > 0:
        loop["steps_per_s"] = window.steps / window.elapsed_s
        loop |= {f"{what}_tokens_per_s": n / window.elapsed_s for what, n in window.tokens.items()}
    if window.groups_by_state:
        loop["residual"] = float(residual(window.groups_by_state))
    for name, dispatched in window.dispatched.items():
        loop |= share_ratios(dispatched, window.trained.get(name, {}), name)
    facts["loop"] = {**loop, **arm_facts(window.arms)}
    return facts
