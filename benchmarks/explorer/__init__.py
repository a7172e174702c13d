"""Cost of the explorer beside its engine: tokens a second, turns, waiting worlds, and what goes wrong."""
