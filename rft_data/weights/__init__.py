"""Folders that are complete or absent: policy versions, adapters, probes, checkpoints."""
