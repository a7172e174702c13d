"""Operators on rewards: filters, shaping, formats, feedback, preference pairs."""
