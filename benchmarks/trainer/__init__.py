"""Cost of an optimizer step of ours, beside a bare PyTorch loop and stock TRL doing the same update."""
