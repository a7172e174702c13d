"""Offline stages, which train on stored rows: SFT, DPO, KTO, reward models."""
