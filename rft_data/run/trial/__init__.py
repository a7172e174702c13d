"""Operators that a person wrote, tried on stored rollouts: what they would keep, drop and change."""
