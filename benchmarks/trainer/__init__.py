"""What an optimizer step of ours costs, beside a bare PyTorch loop and stock TRL doing the same update."""
