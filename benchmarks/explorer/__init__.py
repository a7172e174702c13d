"""What the explorer costs beside its engine: tokens a second, turns, waiting worlds, and what goes wrong."""
