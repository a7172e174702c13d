"""The bound within which log ratios are exponentiated."""

MAX_NATS = 60.0
"""Log ratios are held within it, so that their exponentials stay finite in float32, and products and squares
of those in float64; a token beyond it has a ratio of e^±60 and no gradient through it."""
