"""Conversations of many turns as exact token rows: what the engine saw, and what it sampled."""
