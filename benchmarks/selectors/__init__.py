"""Benchmarks of the task selectors: what a draw costs, and whether choosing helps."""
