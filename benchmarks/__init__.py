"""Benchmarks: `python -m benchmarks.NAME`. Each compares with a peer or a physical limit in the same run."""
