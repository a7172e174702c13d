"""Samplers: which groups train next, and whether a new rollout may start."""

from rft_data.sampler.group_sampler import GroupSampler
from rft_data.sampler.interfaces import History
from rft_data.sampler.make import POLICIES, make_policy, make_sampler
from rft_data.sampler.policy import Candidate, Moment, Policy

__all__ = [
    "POLICIES",
    "Candidate",
    "GroupSampler",
    "History",
    "Moment",
    "Policy",
    "make_policy",
    "make_sampler",
]
