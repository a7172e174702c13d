"""An algorithm: what a stage sets where the recipe does not. All of it can be overridden."""

from __future__ import annotations

from rft_data import Algorithm

CENTRED = Algorithm(
    summary="the group's mean as the baseline, undivided; clipped ratios",
    paper="ours",
    advantage=[{"grpo_advantage_mapper": {"scale": "none"}}],
    loss={"use": "ppo_clip", "args": {"epsilon_high": 0.28}},
    group_size=4,
)
