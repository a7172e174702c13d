"""Training on stored rows: SFT, DPO, KTO, reward models."""
