"""Gain of RL in the quickstart over the best supervised run on the same data, and of choosing data."""
