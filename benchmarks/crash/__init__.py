"""Crash proof of the buffer: children do real work on one folder and are killed; an outside ledger judges.

`python -m benchmarks.crash --kills 300 --seed 0`. With `--cuts 300` nothing is killed: a life is recorded (by
strace), and the disk is rebuilt as power cuts may leave it. The last line of stdout is JSON; the exit code is
not 0 when anything was lost, doubled, torn or trained twice, or a promised failpoint was never hit.
"""
