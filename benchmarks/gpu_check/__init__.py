"""Checks of this package on a machine with GPUs, a line of JSON each; the same on a CPU, small."""
