"""Samplers: which groups train next, and whether a new rollout may start."""

from rft_data.sampler.fifo import Fifo

__all__ = ["Fifo"]
