"""The rules of our operators as somebody would write them into one script: NumPy on columns, no framework.

Each takes the same rows and gives the same ones, with the same column, as `benchmarks.ops` checks: a row
without a reward counts for nothing. They give no reasons and know nothing of rollouts of several turns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Array = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]
Rule = Callable[[pa.Table], pa.Table]


def _groups(table: pa.Table) -> tuple[Codes, int]:
    encoded = table["group_id"].combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(), len(encoded.dictionary)


def _rewards(table: pa.Table) -> Array:
    """NaN where there is none."""
    return table["reward"].to_numpy().astype(np.float64)


def _mean(codes: Codes, count: int, values: Array) -> Array:
    known = ~np.isnan(values)
    return np.bincount(codes[known], values[known], count) / np.bincount(codes[known], minlength=count)


def _std(codes: Codes, count: int, values: Array, ddof: int) -> Array:
    known = ~np.isnan(values)
    codes, values = codes[known], values[known]
    size = np.bincount(codes, minlength=count)
    centred = values - (np.bincount(codes, values, count) / size)[codes]
    return np.sqrt(np.bincount(codes, centred * centred, count) / (size - ddof))


def _with(table: pa.Table, advantage: Array) -> pa.Table:
    offsets = np.arange(len(advantage) + 1, dtype=np.int32)
    values, missing = pa.array(advantage.astype(np.float32)), pa.array(np.isnan(advantage))
    lists = pa.ListArray.from_arrays(offsets, values, mask=missing)
    return table.append_column("advantage", lists)


def _where(table: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    return table.filter(pa.array(keep))


def _successes(table: pa.Table) -> Array:
    rewards = _rewards(table)
    return np.where(np.isnan(rewards), np.nan, rewards >= 1)


def _number(values: Array) -> pa.Array:
    """A column of float32, null where NaN."""
    return pa.array(values.astype(np.float32), mask=np.isnan(values))


def reward_range(table: pa.Table) -> pa.Table:
    """reward_range_filter: {min_reward: 0.5}"""
    return _where(table, table["reward"].to_numpy() >= 0.5)


def reward_variance(table: pa.Table) -> pa.Table:
    """reward_variance_filter"""
    codes, count = _groups(table)
    return _where(table, (_std(codes, count, _rewards(table), 0) > 1e-6)[codes])


def dynamic_sampling(table: pa.Table) -> pa.Table:
    """dynamic_sampling_filter"""
    codes, count = _groups(table)
    accuracy = _mean(codes, count, _successes(table))
    return _where(table, ((accuracy > 0) & (accuracy < 1))[codes])


def grpo(table: pa.Table) -> pa.Table:
    """grpo_advantage_mapper"""
    codes, count = _groups(table)
    rewards = _rewards(table)
    centred = rewards - _mean(codes, count, rewards)[codes]
    return _with(table, centred / (_std(codes, count, rewards, 1) + 1e-4)[codes])


def reward_itself(table: pa.Table) -> pa.Table:
    """reward_advantage_mapper"""
    return _with(table, _rewards(table))


def rloo(table: pa.Table) -> pa.Table:
    """rloo_advantage_mapper"""
    codes, count = _groups(table)
    rewards = _rewards(table)
    known = ~np.isnan(rewards)
    size = np.bincount(codes, known, count)[codes]
    others = np.bincount(codes, known * np.nan_to_num(rewards), count)[codes] - rewards
    return _with(table, rewards - others / (size - 1))


def reinforce_baseline(table: pa.Table) -> pa.Table:
    """reinforce_baseline_advantage_mapper"""
    codes, count = _groups(table)
    rewards = _rewards(table)
    centred = rewards - _mean(codes, count, rewards)[codes]
    return _with(table, centred / (centred[~np.isnan(centred)].std(ddof=1) + 1e-8))


def remax(table: pa.Table) -> pa.Table:
    """remax_advantage_mapper"""
    codes, count = _groups(table)
    rewards = _rewards(table)
    greedy = table["member"].to_numpy() == 0
    baseline = np.zeros(count)
    baseline[codes[greedy]] = rewards[greedy]
    advantage = np.where(greedy, 0.0, rewards - baseline[codes])
    return _with(table, advantage).append_column("masked", pa.array(greedy))


def opmd(table: pa.Table) -> pa.Table:
    """opmd_advantage_mapper"""
    codes, count = _groups(table)
    rewards = _rewards(table)
    return _with(table, rewards - np.log(_mean(codes, count, np.exp(rewards)))[codes])


def asymre(table: pa.Table) -> pa.Table:
    """asymre_advantage_mapper"""
    codes, count = _groups(table)
    rewards = _rewards(table)
    return _with(table, rewards - _mean(codes, count, rewards)[codes] + 0.1)


def maxrl(table: pa.Table) -> pa.Table:
    """maxrl_advantage_mapper"""
    codes, count = _groups(table)
    success = _successes(table)
    rate = _mean(codes, count, success)[codes]
    advantage = np.divide(success - rate, rate, out=np.zeros_like(rate), where=rate > 0)
    return _with(table, np.where(np.isnan(success), np.nan, advantage))


def pass_at_k(table: pa.Table) -> pa.Table:
    """pass_at_k_advantage_mapper: {k: 4}"""
    codes, count = _groups(table)
    success = _successes(table)
    known = ~np.isnan(success)
    size = np.bincount(codes, known, count)
    wrong = size - np.bincount(codes[known], success[known], count)
    fail, less = np.ones(count), np.ones(count)
    for chosen in range(4):
        fail *= np.maximum(wrong - chosen, 0) / (size - chosen)
    for chosen in range(3):
        less *= np.maximum(wrong - 1 - chosen, 0) / (size - 1 - chosen)
    spread = np.sqrt(fail * (1 - fail))
    spread[spread == 0] = np.inf
    advantage = np.where(success == 1, fail[codes], (fail - less)[codes]) / spread[codes]
    return _with(table, np.where(known, advantage, np.nan))


def step_wise(table: pa.Table) -> pa.Table:
    """step_wise_advantage_mapper"""
    return grpo(table)


def pass_rate(table: pa.Table) -> pa.Table:
    """pass_rate_mapper"""
    codes, count = _groups(table)
    rewards = _rewards(table)
    columns = {
        "pass_rate": _mean(codes, count, _successes(table)),
        "group_reward_mean": _mean(codes, count, rewards),
        "group_reward_std": _std(codes, count, rewards, 0),
        "group_size": np.bincount(codes[~np.isnan(rewards)], minlength=count),
    }
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values[codes]))
    return table


def gigpo(table: pa.Table) -> pa.Table:
    """gigpo_advantage_mapper"""
    codes, count = _groups(table)
    rewards = _rewards(table)
    states = table["environment"].combine_chunks().dictionary_encode()
    keys = codes.astype(np.int64) * len(states.dictionary) + states.indices.to_numpy()
    found, anchors = np.unique(keys, return_inverse=True)
    total = np.zeros(len(rewards))
    for places, groups in ((codes, count), (anchors, len(found))):
        with np.errstate(invalid="ignore", divide="ignore"):
            std = _std(places, groups, rewards, 1)[places]
            centred = rewards - _mean(places, groups, rewards)[places]
        total += np.where((std > 0) | np.isnan(rewards), centred / (std + 1e-4), 0.0)
    return _with(table, total)


def length_shaping(table: pa.Table) -> pa.Table:
    """length_shaping_mapper: {rule: kimi, weight: 0.1}"""
    codes, count = _groups(table)
    lengths, rewards = _sampled_tokens(table), _rewards(table)
    known = ~np.isnan(rewards)
    low, high = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(low, codes[known], lengths[known])
    np.maximum.at(high, codes[known], lengths[known])
    share = 0.5 - np.divide(
        lengths - low[codes], (high - low)[codes], out=np.full(len(codes), 0.5), where=(high > low)[codes]
    )
    shaped = rewards + 0.1 * np.where(rewards >= 1, share, np.minimum(share, 0.0))
    return table.append_column("shaped_reward", _number(shaped))


def overlong_penalty(table: pa.Table) -> pa.Table:
    """overlong_penalty_mapper: {max_tokens: 800, cache_tokens: 200}"""
    penalty = np.clip((600 - _sampled_tokens(table)) / 200, -1, 0)
    return table.append_column("shaped_reward", _number(_rewards(table) + penalty))


def _sampled_tokens(table: pa.Table) -> Array:
    mask = table["action_mask"].combine_chunks()
    starts = mask.offsets.to_numpy()[:-1] - mask.offsets[0].as_py()
    return np.add.reduceat(mask.flatten().to_numpy(), starts, dtype=np.float64)


def reward_shaping(table: pa.Table) -> pa.Table:
    """reward_shaping_mapper: {weights: {reward: 1.0, reward_parts/format: 0.2}, normalize: group}"""
    codes, count = _groups(table)
    rewards = _rewards(table)
    parts = table["reward_parts"].combine_chunks().dictionary_encode()
    format_ = np.array([json.loads(text)["format"] for text in parts.dictionary.to_pylist()])
    terms = {1.0: rewards, 0.2: np.where(np.isnan(rewards), np.nan, format_[parts.indices.to_numpy()])}
    shaped = np.zeros(len(codes))
    for weight, term in terms.items():
        centred = term - _mean(codes, count, term)[codes]
        shaped += weight * centred / (_std(codes, count, term, 1) + 1e-4)[codes]
    return table.append_column("shaped_reward", _number(shaped))


def truncation_mask(table: pa.Table) -> pa.Table:
    """truncation_mask_mapper"""
    return table.append_column("masked", pc.equal(table["finish_reason"], "length"))


def invalid_reward(table: pa.Table) -> pa.Table:
    """invalid_reward_filter"""
    return _where(table, np.isfinite(table["reward"].to_numpy()))


def down_sampling(table: pa.Table) -> pa.Table:
    """down_sampling_filter: {size: 4}"""
    codes, _ = _groups(table)
    rewards = _rewards(table)
    order = np.argsort(codes, kind="stable")
    keep = np.zeros(len(codes), bool)
    ids = table["experience_id"].to_pylist()
    for rows in np.split(order, np.cumsum(np.bincount(codes))[:-1]):
        rows = rows[~np.isnan(rewards[rows])]
        rows = np.array(sorted(rows, key=lambda row: (rewards[row], ids[row])))
        choices = [np.concatenate([rows[:low], rows[len(rows) - (4 - low) :]]) for low in range(5)]
        keep[max(choices, key=lambda chosen: round(float(rewards[chosen].var()), 9))] = True
    return _where(table, keep)


def best_of_n(table: pa.Table) -> pa.Table:
    """best_of_n_filter: {k: 2}"""
    codes, _ = _groups(table)
    ids = table["experience_id"].combine_chunks().dictionary_encode()
    rank = np.argsort(np.argsort(np.array(ids.dictionary.to_pylist())))[ids.indices.to_numpy()]
    rewards = _rewards(table)
    order = np.lexsort((rank, _sampled_tokens(table), -rewards, codes))  # NaN comes last
    first = np.searchsorted(codes[order], codes[order])
    keep = np.zeros(len(codes), bool)
    keep[order[np.arange(len(codes)) - first < 2]] = True
    return _where(table, keep & ~np.isnan(rewards))


def preference_pair(table: pa.Table) -> pa.Table:
    """preference_pair_mapper"""
    codes, _ = _groups(table)
    rewards, lengths = _rewards(table), _sampled_tokens(table)
    ids = table["experience_id"].to_pylist()
    order = np.argsort(codes, kind="stable")
    preferred: list[list[str] | None] = [None] * len(ids)
    for rows in np.split(order, np.cumsum(np.bincount(codes))[:-1]):
        rows = rows[~np.isnan(rewards[rows])]
        ranked = sorted(rows, key=lambda row: (-rewards[row], lengths[row], ids[row]))
        if rewards[ranked[0]] > rewards[ranked[-1]]:
            preferred[ranked[0]] = [ids[ranked[-1]]]
    return table.append_column("preferred_over", pa.array(preferred, pa.list_(pa.string())))


RULES: Mapping[str, Rule] = {
    "reward_range_filter": reward_range,
    "invalid_reward_filter": invalid_reward,
    "truncation_mask_mapper": truncation_mask,
    "overlong_penalty_mapper": overlong_penalty,
    "reward_variance_filter": reward_variance,
    "dynamic_sampling_filter": dynamic_sampling,
    "down_sampling_filter": down_sampling,
    "best_of_n_filter": best_of_n,
    "pass_rate_mapper": pass_rate,
    "length_shaping_mapper": length_shaping,
    "reward_shaping_mapper": reward_shaping,
    "preference_pair_mapper": preference_pair,
    "grpo_advantage_mapper": grpo,
    "reward_advantage_mapper": reward_itself,
    "rloo_advantage_mapper": rloo,
    "reinforce_baseline_advantage_mapper": reinforce_baseline,
    "remax_advantage_mapper": remax,
    "opmd_advantage_mapper": opmd,
    "asymre_advantage_mapper": asymre,
    "maxrl_advantage_mapper": maxrl,
    "pass_at_k_advantage_mapper": pass_at_k,
    "step_wise_advantage_mapper": step_wise,
    "gigpo_advantage_mapper": gigpo,
}
"""Operator to its plain rule."""
