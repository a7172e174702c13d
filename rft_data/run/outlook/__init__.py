"""Needs and work of a run, computed from its recipe before a GPU-hour is spent on it."""
