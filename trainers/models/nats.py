"""The bound on log ratios before `exp` is taken of them."""

MAX_NATS = 60.0
"""Log ratios are clamped to ±MAX_NATS. Their exponentials are then finite in float32, and products and
squares of those in float64. A token beyond the bound has the ratio e^±60, and no gradient flows through
it."""
