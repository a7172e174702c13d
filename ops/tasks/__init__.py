"""Operators on tasks: normalisation, decontamination, difficulty, priority."""
