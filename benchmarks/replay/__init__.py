"""Savings by reuse: tokens generated until a held-out accuracy is reached, with replay and without."""
