"""What a run would come to, reckoned from its recipe before a GPU-hour is spent on it."""
