"""What a machine with GPUs can check of this package, a line of JSON each; the same on a CPU, small."""
