"""What a run would need and do, computed from its recipe before a GPU-hour is spent on it."""
