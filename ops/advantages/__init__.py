"""Advantage mappers, one estimator per file."""
