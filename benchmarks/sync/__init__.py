"""Synchronous, one-step and asynchronous runs against each other: `python -m benchmarks.sync`."""
